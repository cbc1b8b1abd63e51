"""In which dtype the sides compute: the head first, for its logits are the largest numbers, then all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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


def _sides(
    world: World, state: State, edit: dict[str, object], words: str, cause: str, hint: str
) -> Iterator[Experiment]:
    reasons, found = [], {}
    for side, scored, change in (
        ("engine", world.engine, replace(state.engine, **edit)),  # type: ignore[arg-type]
        ("trainer", world.trainer, replace(state.trainer, **edit)),  # type: ignore[arg-type]
    ):
        try:
            found[side] = scored(change), change  # type: ignore[operator]
        except Unable as error:
            reasons.append(str(error))
    moved = state
    if "engine" in found:
        moved = replace(moved, q=found["engine"][0], engine=found["engine"][1])
        yield Experiment(f"{words} in the engine", cause, hint, moved)
    if "trainer" in found:
        alone = replace(state, p=found["trainer"][0], trainer=found["trainer"][1])
        yield Experiment(f"{words} in the trainer", cause, hint, alone)
    if len(found) == 2:
        both = replace(moved, p=found["trainer"][0], trainer=found["trainer"][1])
        yield Experiment(f"{words} on both sides", cause, hint, both)
    if not found:
        raise Unable(reasons[0])
