"""Starts the engine and the trainer that a command asks for, and ends them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.cli.choices import TrainerName
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.engines.base import Engine
    from ckptcheck.engines.switches import Switches
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.trainers.base import Trainer
    from ckptcheck.trainers.layout import Layout


@dataclass
class Sides:
    """What is started for one source. exchange: made when a trainer is started; folder: for what is written on the way."""

    source: str
    ckpt: Checkpoint
    folder: Path
    stack: ExitStack
    timeout: float
    engine_python: Path | None = None
    trainer_python: Path | None = None
    _exchanges: list[Exchange] = field(default_factory=list)

    @property
    def exchange(self) -> Exchange:
        """A plane for weights on their way from trainer to engine."""
        from ckptcheck.host.exchange import Exchange

        if not self._exchanges:
            self._exchanges.append(self.stack.enter_context(Exchange()))
        return self._exchanges[0]

    def engine(
        self,
        name: str,
        *,
        dtype: str,
        ranks: int = 1,
        mode: str = "plain",
        length: int | None = None,
        together: int = 1,
        switches: Switches | None = None,
        instead: Engine | None = None,
    ) -> Engine:
        """Start an engine; whoever asks ends it."""
        from ckptcheck.engines import registry

        local = self.ckpt.source.local
        if local is None:
            raise CkptcheckError(f"{self.source} is not on this disk, and an engine loads from there")
        return registry.start(
            name, local, dtype=dtype, ranks=ranks, mode=mode, length=length, together=together,
            switches=switches, instead=instead, python=self.engine_python, scratch=(self.folder, self.exchange.folder),
        )  # fmt: skip

    def trainer(
        self,
        name: TrainerName,
        *,
        dtype: str,
        head_fp32: bool = False,
        layout: Layout | None = None,
        instead: Trainer | None = None,
    ) -> Trainer:
        """Start a trainer; whoever asks ends it. instead: one whose process is used, and that is gone then."""
        from ckptcheck.trainers.megatron import start_megatron
        from ckptcheck.trainers.remote import RemoteTrainer
        from ckptcheck.trainers.transformers import start_transformers

        host = instead.host if isinstance(instead, RemoteTrainer) else None
        if name is TrainerName.megatron:
            return start_megatron(
                self.ckpt, self.exchange, layout=layout, dtype=dtype, head_fp32=head_fp32, python=self.trainer_python,
                timeout=self.timeout, host=host,
            )  # fmt: skip
        if layout is not None and layout.world > 1:
            raise CkptcheckError("--trainer transformers has one process: --tp, --pp and --ep are Megatron's")
        return start_transformers(
            self.ckpt, self.exchange, dtype=dtype, head_fp32=head_fp32, python=self.trainer_python, timeout=self.timeout,
            host=host,
        )  # fmt: skip


@contextmanager
def sides(
    source: str, *, timeout: float, engine_python: Path | None = None, trainer_python: Path | None = None
) -> Iterator[Sides]:
    """Open a source for live work, a Megatron run as well; see `opened` for what it raises."""
    from ckptcheck.cli.interruption import Interruption
    from ckptcheck.refit.source import opened

    with Interruption() as interruption, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-parity-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ckpt = opened(source, folder / "source")
        stack.callback(interruption.overhear)
        yield Sides(source, ckpt, folder, stack, timeout, engine_python, trainer_python)
