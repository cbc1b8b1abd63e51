"""Runs one prompt through a trainer and an engine, one after the other, and compares the outputs of their modules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.localize.localization import Localization
from ckptcheck.live.runtime.engines.activations import Activations, ActivationSource
from ckptcheck.live.runtime.engines.sizing import default_context_len
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

Start = Callable[[], tuple[str, ActivationSource]]
"""Starts a side; returns its name in the report, and the side."""


@dataclass(frozen=True)
class LocalizeSides:
    """How both sides are started."""

    engine: str = "vllm"
    """The engine, or the other trainer in its place."""
    engine_source: Path | None = None
    """The checkpoint that the engine loads; None: the trainer's."""
    trainer: str = "transformers"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    engine_tp: int = 1
    engine_mode: str = "plain"
    dtype: str = "float32"
    engine_python: Path | None = None
    trainer_python: Path | None = None
    timeout: float = 900.0
    """Seconds for each side."""


def localize_checkpoint(
    source: Path,
    sides: LocalizeSides,
    *,
    tokens: Sequence[int] | None = None,
    limit: float | None = None,
    observer: Observer = SILENT,
) -> Localization:
    """Start a trainer, then an engine or the other trainer, and compare the outputs of their modules for one prompt.

    tokens: the prompt as ids; None: 48 ids, always the same. limit: relative difference that still counts as equal.
    """
    from ckptcheck.checkpoint.open import open_checkpoint
    from ckptcheck.live.localize.live_checkpoint import localize
    from ckptcheck.live.refit.scoring_inputs import scoring_sequences
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.activations import ActivationSource
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.trainers import registry as trainers
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout

    if sides.engine == sides.trainer:
        raise CkptcheckError(f"both sides are {sides.trainer}", "name the other trainer, or an engine, with --engine")
    ckpt = open_checkpoint(str(source))
    embedding = ckpt.components.embedding
    if embedding is None:
        raise CkptcheckError(f"{source} has no token embedding that could be found")
    vocabulary_size = ckpt.tensors[embedding].shape[0]
    prompt = tuple(tokens) if tokens else scoring_sequences(vocabulary_size)[0]
    if unknown := [token for token in prompt if not 0 <= token < vocabulary_size]:
        raise CkptcheckError(f"there is no token {unknown[0]}: the embedding has {vocabulary_size} rows")
    experts_per_token = (ckpt.config.integer("num_experts_per_tok") if ckpt.config else None) or 0
    nbytes = sum(tensor.nbytes for tensor in ckpt.tensors.values()) * (2 if sides.dtype == "float32" else 1)
    with (
        observer.stages() as begin,
        TensorExchange(need=nbytes) as exchange,
        tempfile.TemporaryDirectory(prefix="ckptcheck-localize-") as temporary,
    ):
        folder = Path(temporary)

        def start_trainer(name: str, ckpt: Checkpoint) -> tuple[str, ActivationSource]:
            begin(f"starting {name}")
            # beside megatron, the layout is megatron's
            is_beside_megatron = name != "megatron" and "megatron" in (sides.trainer, sides.engine)
            layout = ParallelLayout() if is_beside_megatron else ParallelLayout(sides.tp, sides.pp, sides.ep)
            trainer = trainers.start_trainer(
                name,
                ckpt,
                exchange,
                layout,
                sides.dtype,
                python=sides.trainer_python,
                scratch=(exchange.folder, folder),
            )
            assert isinstance(trainer, ActivationSource)
            return f"{trainer.info.name} {trainer.info.layout}".strip(), trainer

        def start_other() -> tuple[str, ActivationSource]:
            if sides.engine in trainers.TRAINERS:
                other = ckpt if sides.engine_source is None else open_checkpoint(str(sides.engine_source))
                return start_trainer(sides.engine, other)
            begin(f"starting {sides.engine}")
            held = sides.engine_source or source
            engine = registry.start_engine(
                sides.engine, held, dtype=sides.dtype, ranks=sides.engine_tp, mode=sides.engine_mode,
                context_len=max(default_context_len(held), len(prompt) + 1), python=sides.engine_python,
                scratch=(folder,),
            )  # fmt: skip
            if not isinstance(engine, ActivationSource):
                engine.close()
                raise CkptcheckError(f"{sides.engine} does not tell what its modules give out")
            return engine.info.name, engine

        return localize(
            str(source), partial(start_trainer, sides.trainer, ckpt), start_other, prompt, folder, dtype=sides.dtype,
            experts_per_token=experts_per_token, limit=limit, timeout=sides.timeout, say=begin,
        )  # fmt: skip


def localize(
    target: str,
    reference: Start,
    other: Start,
    tokens: Sequence[int],
    folder: Path,
    *,
    dtype: str,
    experts_per_token: int = 0,
    limit: float | None = None,
    timeout: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Localization:
    """Start one side after the other, so that they need not fit into memory together, and compare their activations.

    Args:
        target: what the report calls the comparison.
        reference: starts the side that the other is compared with.
        other: starts the other side.
        tokens: the ids of the prompt, and only of the prompt: an engine's prefill covers nothing else.
        folder: for temporary files.
        dtype: the compute dtype of both sides, which sets the default limit.
        experts_per_token: 0 for a dense model.
        limit: relative difference that still counts as equal; None: that of the dtype.
        timeout: seconds for each side, its start and end included.
        say: receives a message for each side.

    Raises what the sides raise.
    """
    captures: list[tuple[str, Activations]] = []
    for start in (reference, other):
        with time_budget(timeout):
            name, side = start()
            try:
                say(f"{name}: a forward of {len(tokens)} tokens")
                captures.append((name, side.capture_activations(tokens, folder)))
            finally:
                side.close()
    (reference_name, reference_activations), (other_name, other_activations) = captures
    return Localization(
        target, (reference_name, other_name), reference_activations, other_activations, dtype, experts_per_token, limit
    )
