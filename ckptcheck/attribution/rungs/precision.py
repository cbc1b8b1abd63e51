"""In which dtype the sides compute: the head first, for its logits are the largest numbers, then all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import Unable, World


def head(world: World, state: State) -> Iterator[Experiment]:
    """Compute the head in float32 on either side, and on both."""
    yield from _sides(
        world, state, {"head_fp32": True}, "with the head in float32", "a head in 16 bits rounds the logits",
        "compute the head in float32 on both sides; on one side alone it can be worse than on none",
    )  # fmt: skip


def whole(world: World, state: State) -> Iterator[Experiment]:
    """Compute all in float32 on either side, and on both."""
    yield from _sides(
        world, state, {"dtype": "float32"}, "with all in float32", "16 bits round on the way, each side in its own order",
        "use the same kernels on both sides, float16 instead of bfloat16, or correct for it in the objective",
    )  # fmt: skip


def _sides(world: World, state: State, edit: dict[str, Any], words: str, cause: str, hint: str) -> Iterator[Experiment]:
    reasons: list[str] = []
    found: dict[str, State] = {}
    for side, made in (("engine", _engine), ("trainer", _trainer)):
        try:
            found[side] = made(world, state, edit)
        except Unable as error:
            reasons.append(str(error))
            continue
        yield Experiment(f"{words} in the {side}", cause, hint, found[side])
    if len(found) == 2:
        both = replace(found["engine"], p=found["trainer"].p, trainer=found["trainer"].trainer)
        yield Experiment(f"{words} on both sides", cause, hint, both)
    if not found:
        raise Unable(reasons[0])


def _engine(world: World, state: State, edit: dict[str, Any]) -> State:
    change = replace(state.engine, **edit)
    return replace(state, q=world.engine(change), engine=change)


def _trainer(world: World, state: State, edit: dict[str, Any]) -> State:
    change = replace(state.trainer, **edit)
    return replace(state, p=world.trainer(change), trainer=change)
