"""Changes the compute dtype: of the output head first, because its logits are the largest numbers, then of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ckptcheck.live.experiments.attribution.backend import Backend, NotAvailable
from ckptcheck.live.experiments.attribution.experiment import Trial
from ckptcheck.live.experiments.attribution.state import SearchState


def head(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Compute the head in float32 on either side, and on both."""
    yield from _try_sides(
        backend, state, {"head_fp32": True}, "with the output head in float32", "an output head in 16 bits rounds the logits",
        "compute the head in float32 on both sides; on one side alone it can be worse than on none",
    )  # fmt: skip


def whole(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Compute all in float32 on either side, and on both."""
    yield from _try_sides(
        backend, state, {"dtype": "float32"}, "with all in float32",
        "16-bit arithmetic rounds at every step, and each side adds in its own order",
        "use the same kernels on both sides, float16 instead of bfloat16, or correct for it in the objective",
    )  # fmt: skip


def _try_sides(
    backend: Backend, state: SearchState, edit: dict[str, Any], description: str, cause: str, hint: str
) -> Iterator[Trial]:
    """Apply the same edit to the engine's change, to the trainer's, and to both. Raises NotAvailable where neither side can."""
    reasons: list[str] = []
    states: dict[str, SearchState] = {}
    for side, change_side in (("engine", _change_engine), ("trainer", _change_trainer)):
        try:
            states[side] = change_side(backend, state, edit)
        except NotAvailable as error:
            reasons.append(str(error))
            continue
        yield Trial(f"{description} in the {side}", cause, hint, states[side])
    if len(states) == 2:
        both_sides = replace(states["engine"], p=states["trainer"].p, trainer=states["trainer"].trainer)
        yield Trial(f"{description} on both sides", cause, hint, both_sides)
    if not states:
        raise NotAvailable(reasons[0])


def _change_engine(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.engine, **edit)
    return replace(state, q=backend.engine(change), engine=change)


def _change_trainer(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.trainer, **edit)
    return replace(state, p=backend.trainer(change), trainer=change)
