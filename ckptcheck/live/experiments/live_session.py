"""Starts engines and trainers with one checkpoint, and removes what they leave behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.runtime.engines.base import Engine, EngineInfo
    from ckptcheck.live.runtime.engines.engine_options import Logprobs, Switches
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.trainers.base import Trainer, TrainerInfo
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout


@dataclass
class LiveSession:
    """An open checkpoint, and the means to start engines and trainers with it. Whoever starts one closes it."""

    source: str
    """The checkpoint as the user named it."""
    ckpt: Checkpoint
    """The checkpoint in Hugging Face form; a Megatron run is converted."""
    folder: Path
    """A temporary folder, removed when the session ends."""
    stack: ExitStack
    """What ends with the session."""
    timeout: float
    """Seconds for any one call."""
    engine_python: Path | None = None
    """A Python that has the engine; None: the one that ckptcheck installed."""
    trainer_python: Path | None = None
    """A Python that has the trainer; None: the one that ckptcheck installed."""
    observer: Observer = SILENT
    _exchanges: list[TensorExchange] = field(default_factory=list)

    @property
    def exchange(self) -> TensorExchange:
        """Shared memory for tensors between this process, the trainer and the engine; created at the first use."""
        from ckptcheck.live.runtime.process.exchange import TensorExchange

        if not self._exchanges:
            self._exchanges.append(self.stack.enter_context(TensorExchange()))
        return self._exchanges[0]

    def start_engine(
        self,
        name: str,
        *,
        dtype: str,
        ranks: int = 1,
        mode: str = "plain",
        context_len: int | None = None,
        concurrent_sequences: int = 1,
        switches: Switches | None = None,
        folder: Path | None = None,
        replaces: Engine | None = None,
    ) -> Engine:
        """Start an engine.

        folder: another checkpoint that it loads. replaces: an engine whose process the new one may take over; the old one
        cannot be used any more. Raises CkptcheckError for a checkpoint that is not on this disk.
        """
        from ckptcheck.live.runtime.engines import registry

        local = folder or self.ckpt.source.local
        if local is None:
            raise CkptcheckError(f"{self.source} is not on this disk, and an engine loads from there")
        return registry.start_engine(
            name, local, dtype=dtype, ranks=ranks, mode=mode, context_len=context_len,
            concurrent_sequences=concurrent_sequences, switches=switches, replaces=replaces, python=self.engine_python,
            scratch=(self.folder, self.exchange.folder),
        )  # fmt: skip

    def start_trainer(
        self,
        name: str,
        *,
        dtype: str,
        head_fp32: bool = False,
        layout: ParallelLayout | None = None,
        replaces: Trainer | None = None,
    ) -> Trainer:
        """Start a trainer. replaces: one whose process the new trainer takes over; it cannot be used any more."""
        from ckptcheck.live.runtime.trainers.megatron import start_megatron
        from ckptcheck.live.runtime.trainers.registry import check_trainer
        from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
        from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
        from ckptcheck.live.runtime.trainers.transformers import start_transformers

        host = replaces.host if isinstance(replaces, RemoteTrainer) else None
        process = TrainerProcess(python=self.trainer_python, timeout=self.timeout, host=host)
        if name == "megatron":
            return start_megatron(
                self.ckpt, self.exchange, layout=layout, dtype=dtype, head_fp32=head_fp32, process=process
            )
        if layout is not None:
            check_trainer(name, layout)
        return start_transformers(self.ckpt, self.exchange, dtype=dtype, head_fp32=head_fp32, process=process)

    def log_ignored_switches(self, engine: Engine) -> None:
        """Tell the observer which switches the engine did not take, and why."""
        for switch, reason in engine.ignored_switches.items():
            self.observer.log(f"{switch}: {reason}")


@contextmanager
def open_live_session(
    source: str,
    *,
    timeout: float,
    engine_python: Path | None = None,
    trainer_python: Path | None = None,
    observer: Observer = SILENT,
) -> Iterator[LiveSession]:
    """Open a Hugging Face checkpoint or a Megatron run for engines and trainers. Raises what `open_source` raises."""
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard

    with SignalGuard() as signal_guard, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-parity-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ckpt = open_source(source, folder / "source")
        stack.callback(signal_guard.ignore_signals)
        yield LiveSession(source, ckpt, folder, stack, timeout, engine_python, trainer_python, observer)


def with_batch_size(switches: Switches, sequences: int) -> Switches:
    """Let an engine compute a whole batch at once, at least 8 sequences, unless the user set the number."""
    return replace(switches, sequences=max(8, sequences)) if switches.sequences is None else switches


def effective_logprobs(engine: Engine, switches: Switches) -> Logprobs:
    """Return which logprobs the engine gives, raw or processed: the other kind where it ignored the switch."""
    requested = switches.logprobs or "raw"
    if "logprobs" not in engine.ignored_switches:
        return requested
    return "raw" if requested == "processed" else "processed"


def describe_side(info: EngineInfo | TrainerInfo) -> str:
    """Return name, version and dtype of an engine or a trainer."""
    return f"{info.name} {info.version} {info.dtype}"
