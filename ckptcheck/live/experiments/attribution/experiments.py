"""The experiments on a gap, cheapest first: those that need only files, then a forward pass, then a new start of a side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution import left_out_tokens
from ckptcheck.live.experiments.attribution.experiment import Backend, GapExperiment, SearchState, Trial
from ckptcheck.rollouts.metrics.distribution import fit_temperature
from ckptcheck.text.formatting import count, join_truncated

if TYPE_CHECKING:
    from numpy.typing import NDArray

Run = Callable[[Backend, SearchState], Iterator[Trial]]
RAW = "the engine returned raw logprobs, and the trainer divides by the temperature"
PROCESSED = "the engine returned processed logprobs, and the trainer's are raw"
USE_PROCESSED = "set logprobs-mode=processed_logprobs, or have the trainer not divide"
USE_RAW = "divide the trainer's logits by the sampling temperature, or set logprobs-mode=raw_logprobs"


def unscored(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Leave out tokens for which a side has a logprob of exactly 0: no model drew them (outputs of tools, for example)."""
    import numpy as np

    is_zero = state.mask & ((state.q == 0) | (state.p == 0)) & (state.q != state.p)
    remaining = state.mask & ~is_zero
    if not is_zero.any() or not remaining.any():
        return
    sides = [side for side, values in (("engine", state.q), ("trainer", state.p)) if np.any(values[is_zero] == 0)]
    yield Trial(
        f"without {int(is_zero.sum()):,} tokens whose logprob is exactly 0",
        f"the {' and the '.join(sides)} did not score them, and the response mask counts them",
        "mask tokens that the engine did not draw: prompts, answers of tools, padding",
        replace(state, mask=remaining),
        only_drops_tokens=True,
    )


def moved(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Shift the trainer's logprobs by a token, within each sequence."""
    import numpy as np

    for shift in (-1, 1):
        p = np.full_like(state.p, np.nan)
        inside = np.zeros_like(state.mask)
        for number in range(backend.rollouts.sequence_count):
            span = backend.rollouts.sequence(number)
            target = slice(span.start + max(0, -shift) + 1, span.stop - max(0, shift))
            if target.stop > target.start:
                p[target] = state.p[target.start + shift : target.stop + shift]
                inside[target] = True
        mask = state.mask & inside & np.roll(state.mask, -shift)
        if mask.any():
            yield Trial(
                f"with the trainer's logprobs moved by {shift:+d}",
                "one side assigns the next token's logprobs"
                if shift > 0
                else "one side assigns the previous token's logprobs",
                "logits at position i score token i + 1: check the index with which they are gathered",
                replace(state, p=p, mask=mask),
            )


def first(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Drop the first token of each sequence, double it, or prepend the BOS that a side may have dropped."""
    rollouts = backend.rollouts
    first_tokens = {int(rollouts.tokens[rollouts.sequence(number).start]) for number in range(rollouts.sequence_count)}
    shared_token = first_tokens.pop() if len(first_tokens) == 1 else None
    changes: list[tuple[str, str, dict[str, Any]]] = []
    if shared_token is not None:
        changes.append(("without the first token", "the engine was not given the first token (BOS)", {"drop": 1}))
        changes.append(("with the first token twice", "the engine was given BOS twice", {"prepend": (shared_token,)}))
    if (bos := backend.bos) is not None and bos != shared_token:
        changes.append(
            (
                "with BOS before it",
                "the engine puts BOS before the prompt, and the trainer's has none",
                {"prepend": (bos,)},
            )
        )
    for description, cause, edit in changes:
        change = replace(state.trainer, **edit)
        yield Trial(
            description,
            cause,
            "render and tokenise the prompt once, and hand ids to both sides",
            _score_changed(backend, state, change),
        )


def _score_changed(backend: Backend, state: SearchState, change: Any) -> SearchState:
    """Return the state with the trainer's logprobs under a `TrainerChange`. Raises Skip if no token remains."""
    import numpy as np

    p: NDArray[Any] = backend.trainer(change)
    mask = state.mask & np.isfinite(p)
    if not mask.any():
        raise Skip("no token would be left")
    return replace(state, p=p, mask=mask, trainer=change)


def heated(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score at temperature 1, at the sampling temperature, and at the temperature that fits recorded distributions."""
    metadata = backend.rollouts.metadata
    current = state.trainer.temperature or (metadata.trainer.temperature if metadata.trainer else None) or 1.0
    sampling_temperature = metadata.sampling.temperature
    fit = fit_temperature(backend.rollouts)
    known_temperatures = {
        temperature for temperature in (1.0, sampling_temperature) if temperature and abs(temperature - current) > 1e-6
    }
    temperatures = set(known_temperatures)
    if fit is not None and all(
        abs(fit.temperature * current - temperature) > 0.01 * temperature
        for temperature in {*known_temperatures, current}
    ):
        temperatures.add(round(fit.temperature * current, 4))
    if not temperatures and fit is None:
        raise Skip("no distributions are recorded from which a temperature could be fitted")
    reason = ""
    for temperature in sorted(temperatures):
        change = replace(state.trainer, temperature=temperature)
        try:
            after = replace(state, p=backend.trainer(change), trainer=change)
        except Skip as error:
            reason = str(error)
            continue
        if temperature not in known_temperatures:
            cause, hint = (
                f"one side's logits are divided by {temperature:g}, and nothing says so",
                "look for a second temperature",
            )
        elif temperature == 1.0 and sampling_temperature != 1.0:
            cause, hint = RAW, USE_PROCESSED
        else:
            cause, hint = PROCESSED, USE_RAW
        yield Trial(f"at T = {temperature:g}", cause, hint, after, is_fitted=temperature not in known_temperatures)
    if reason:
        raise Skip(reason)


def cut(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Renormalise the trainer's logprobs over the tokens that top-p and top-k keep."""
    sampling = backend.rollouts.metadata.sampling
    top_p, top_k = sampling.top_p or 1.0, max(0, sampling.top_k or 0)
    if top_p >= 1 and not top_k:
        return
    temperatures = {state.trainer.temperature or 1.0, sampling.temperature or 1.0}
    for temperature in sorted(temperatures):
        change = replace(state.trainer, temperature=temperature, top_p=top_p, top_k=top_k)
        filters = " and ".join([f"top-p {top_p:g}"] * (top_p < 1) + [f"top-k {top_k}"] * bool(top_k))
        yield Trial(
            f"over {filters} only" + (f" at T = {temperature:g}" if temperature != 1 else ""),
            "the engine reports logprobs of the distribution that it sampled from, which sums to 1 over the tokens that the"
            " filter keeps",
            "set logprobs-mode=raw_logprobs, or train with top-p 1 and top-k off: no trainer renormalises",
            replace(state, p=backend.trainer(change), trainer=change),
        )


# The control for all others comes first: a side scores again with nothing changed. A gap that vanishes then comes from the process
# that wrote the file, and not from the side that ckptcheck starts; else the first experiment that uses a side would be the cause.


def trainer_again(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the trainer score again."""
    trainer_info = backend.rollouts.metadata.trainer
    temperature = state.trainer.temperature or (trainer_info.temperature if trainer_info is not None else None) or 1.0
    yield Trial(
        "when the trainer scores again",
        "the file was scored with other weights than those of the trainer given here, or at another temperature than it says",
        "check which checkpoint and step the recorded logprobs come from",
        replace(state, p=backend.trainer(replace(state.trainer, temperature=temperature))),
    )


def weights(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine from the trainer's weights, where bytes differ."""
    differing_tensors = backend.weights()
    if not differing_tensors:
        return
    yield Trial(
        "with the engine started from the trainer's weights",
        f"{count(len(differing_tensors), 'tensor differs', 'tensors differ')}: {join_truncated(differing_tensors)}",
        "ckptcheck refit says how the sync lost them, ckptcheck diff how a conversion did",
        _change_engine(backend, state, {"cold": True}),
    )


def config(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine with the trainer's config where the two configs differ."""
    differences = backend.config()
    if not differences:
        return
    yield Trial(
        "with the trainer's config",
        f"the engine's says {'; '.join(differences[:3])}",
        "give the engine the config that the weights were trained with",
        _change_engine(backend, state, {"config": True}),
    )


def change_engine(description: str, cause: str, hint: str, **edit: Any) -> Run:
    """Return the experiment in which the engine scores the tokens again with these fields of its change set."""

    def run(backend: Backend, state: SearchState) -> Iterator[Trial]:
        yield Trial(description, cause, hint, _change_engine(backend, state, edit))

    return run


def change_both(description: str, cause: str, hint: str, **edit: Any) -> Run:
    """Return the experiment that sets these fields for the engine, for the trainer, and for both.

    It raises Skip where neither side can.
    """

    def run(backend: Backend, state: SearchState) -> Iterator[Trial]:
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

    return run


def _change_engine(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.engine, **edit)
    return replace(state, q=backend.engine(change), engine=change)


def _change_trainer(backend: Backend, state: SearchState, edit: dict[str, Any]) -> SearchState:
    change = replace(state.trainer, **edit)
    return replace(state, p=backend.trainer(change), trainer=change)


EXPERIMENTS: tuple[GapExperiment, ...] = (
    GapExperiment("tokens that were not scored", unscored, "semantics"),
    GapExperiment("logprobs moved by a token", moved, "semantics"),
    GapExperiment("the trainer again", trainer_again, "weights"),
    GapExperiment("temperature", heated, "semantics"),
    GapExperiment("top-p and top-k", cut, "semantics"),
    GapExperiment(
        "the engine again",
        change_engine(
            "when the engine scores again",
            "the tokens were drawn with other weights than the engine's checkpoint, or from a cache of other weights: a lost "
            "sync, a stale cache, or older weights by design",
            "ckptcheck refit tries the sync, and ckptcheck parity probe the caches; record weight versions to tell a lag",
        ),
        "weights",
    ),
    GapExperiment("weights", weights, "weights"),
    GapExperiment("config", config, "semantics"),
    GapExperiment("first token", first, "semantics"),
    GapExperiment(
        "caches",
        change_engine(
            "with caches emptied before each batch",
            "the engine's cache still held keys and values of older weights",
            "reset the prefix cache after every weight update (reset_prefix_cache, flush_cache)",
            fresh=True,
        ),
        "path",
    ),
    GapExperiment(
        "decoding",
        change_engine(
            "when the engine scores by prefill",
            "its decoding and its prefill compute different logprobs",
            "try another attention backend, and graphs, chunked prefill and speculative decoding off",
            path="prefill",
        ),
        "path",
    ),
    GapExperiment(
        "batch",
        change_engine(
            "with each sequence alone",
            "the engine's results depend on the other requests in the batch",
            "use batch-invariant kernels, or a fixed batch size on both sides",
            alone=True,
        ),
        "path",
    ),
    GapExperiment(
        "head in float32",
        change_both(
            "with the output head in float32",
            "an output head in 16 bits rounds the logits",
            "compute the head in float32 on both sides; on one side alone it can be worse than on none",
            head_fp32=True,
        ),
        "precision",
    ),
    GapExperiment(
        "all in float32",
        change_both(
            "with all in float32",
            "16-bit arithmetic rounds at every step, and each side adds in its own order",
            "use the same kernels on both sides, float16 instead of bfloat16, or correct for it in the objective",
            dtype="float32",
        ),
        "precision",
    ),
    GapExperiment("experts", left_out_tokens.experts, "routing"),
    GapExperiment("tokens of older weights", left_out_tokens.score_older_tokens, "objective"),
)
