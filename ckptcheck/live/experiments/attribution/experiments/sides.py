"""Has a side score the same tokens again: as it is, from other weights or another config, by another path, in another dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import Backend, EngineChange
from ckptcheck.live.experiments.attribution.experiment import SearchState, Trial
from ckptcheck.text.formatting import count, join_truncated

# The control for all others comes first: a side scores again with nothing changed. A gap that vanishes then comes from the process
# that wrote the file, and not from the side that ckptcheck starts; else the first experiment that uses a side would be the cause.


def trainer_again(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the trainer score again."""
    trainer_info = backend.rollouts.metadata.trainer
    temperature = state.trainer.temperature or (trainer_info.temperature if trainer_info is not None else None) or 1.0
    yield Trial(
        "when the trainer scores again",
        "what scored the file had other weights than the trainer given here, or divided by another temperature than it says",
        "see which checkpoint and which step the recorded logprobs are of",
        replace(state, p=backend.trainer(replace(state.trainer, temperature=temperature))),
    )


def engine_again(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the engine score again as in the job."""
    yield Trial(
        "when the engine scores again",
        "what drew the tokens had other weights than the engine's checkpoint, or keys and values of such: a sync that was "
        "lost, a stale cache, or older weights by design",
        "ckptcheck refit tries the sync, and ckptcheck parity probe the caches; record weight versions to tell a lag",
        replace(state, q=backend.engine(state.engine)),
    )


def weights(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine from the trainer's weights, where bytes differ."""
    differing_tensors = backend.weights()
    if not differing_tensors:
        return
    change = replace(state.engine, cold=True)
    yield Trial(
        "with the engine started from the trainer's weights",
        f"{count(len(differing_tensors), 'tensor differs', 'tensors differ')}: {join_truncated(differing_tensors)}",
        "ckptcheck refit says how the sync lost them, ckptcheck diff how a conversion did",
        replace(state, q=backend.engine(change), engine=change),
    )


def config(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine with the trainer's config where the two configs differ."""
    differences = backend.config()
    if not differences:
        return
    change = replace(state.engine, config=True)
    yield Trial(
        "with the trainer's config",
        f"the engine's says {'; '.join(differences[:3])}",
        "give the engine the config that the weights were trained with",
        replace(state, q=backend.engine(change), engine=change),
    )


def _score_again(
    backend: Backend, state: SearchState, change: EngineChange, description: str, cause: str, hint: str
) -> Iterator[Trial]:
    """Have the engine score the tokens again under a change."""
    yield Trial(description, cause, hint, replace(state, q=backend.engine(change), engine=change))


def caches(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score again with caches emptied."""
    return _score_again(
        backend, state, replace(state.engine, fresh=True), "with caches emptied before each sequence",
        "the engine's cache still held keys and values of older weights",
        "reset the prefix cache after every weight update (reset_prefix_cache, flush_cache)",
    )  # fmt: skip


def decoding(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score again by prefill."""
    return _score_again(
        backend, state, replace(state.engine, path="prefill"), "when the engine scores by prefill",
        "its decoding and its prefill compute different logprobs",
        "try another attention backend, and graphs, chunked prefill and speculative decoding off",
    )  # fmt: skip


def batch(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score each sequence by itself."""
    return _score_again(
        backend, state, replace(state.engine, alone=True), "with each sequence alone",
        "the engine's results depend on the other requests in the batch",
        "use batch-invariant kernels, or a fixed batch size on both sides",
    )  # fmt: skip


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
    """Apply the same edit to the engine's change, to the trainer's, and to both. Raises Skip where neither side can."""
    reasons: list[str] = []
    states: dict[str, SearchState] = {}
    for side, change_side in (("engine", _change_engine), ("trainer", _change_trainer)):
        try:
            states[side] = change_side(backend, state, edit)
        except Skip as error:
            reasons.append(str(error))
            continue
        yield Trial(f"{description} in the {side}", cause, hint, states[side])
    if len(states) == 2:
        both_sides = replace(states["engine"], p=states["trainer"].p, trainer=states["trainer"].trainer)
        yield Trial(f"{description} on both sides", cause, hint, both_sides)
    if not states:
        raise Skip(reasons[0])


def _change_engine(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.engine, **edit)
    return replace(state, q=backend.engine(change), engine=change)


def _change_trainer(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.trainer, **edit)
    return replace(state, p=backend.trainer(change), trainer=change)
