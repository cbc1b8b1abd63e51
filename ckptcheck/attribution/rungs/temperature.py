"""Of which distribution the logprobs are: the model's own (raw), or the one that was sampled from (processed)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import Unable, World
from ckptcheck.metrics.distribution import temperature_of

RAW = "the engine returned raw logprobs, and the trainer divides by the temperature"
PROCESSED = "the engine returned processed logprobs, and the trainer's are raw"
USE_PROCESSED = "set logprobs-mode=processed_logprobs, or have the trainer not divide"
USE_RAW = "divide the trainer's logits by the sampling temperature, or set logprobs-mode=raw_logprobs"


def heated(world: World, state: State) -> Iterator[Experiment]:
    """Score at 1, at the sampling's temperature, and at the one that recorded distributions tell."""
    about = world.rollouts.metadata
    now = state.trainer.temperature or (about.trainer.temperature if about.trainer else None) or 1.0
    drawn = about.sampling.temperature
    fitted = temperature_of(world.rollouts)
    known = {heat for heat in (1.0, drawn) if heat and abs(heat - now) > 1e-6}
    guesses = set(known)
    if fitted is not None and all(abs(fitted.temperature * now - heat) > 0.01 * heat for heat in {*known, now}):
        guesses.add(round(fitted.temperature * now, 4))
    if not guesses and fitted is None:
        raise Unable("no distributions are recorded that would tell one")
    reason = ""
    for heat in sorted(guesses):
        change = replace(state.trainer, temperature=heat)
        try:
            after = replace(state, p=world.trainer(change), trainer=change)
        except Unable as error:
            reason = str(error)
            continue
        if heat not in known:
            cause, hint = (
                f"one side's logits are divided by {heat:g}, and nothing says so",
                "look for a second temperature",
            )
        elif heat == 1.0 and drawn != 1.0:
            cause, hint = RAW, USE_PROCESSED
        else:
            cause, hint = PROCESSED, USE_RAW
        yield Experiment(f"at T = {heat:g}", cause, hint, after, fitted=heat not in known)
    if reason:
        raise Unable(reason)


def cut(world: World, state: State) -> Iterator[Experiment]:
    """Renormalise the trainer's logprobs over the top p and the top k that were sampled from."""
    sampling = world.rollouts.metadata.sampling
    top_p, top_k = sampling.top_p or 1.0, max(0, sampling.top_k or 0)
    if top_p >= 1 and not top_k:
        return
    heats = {state.trainer.temperature or 1.0, sampling.temperature or 1.0}
    for heat in sorted(heats):
        change = replace(state.trainer, temperature=heat, top_p=top_p, top_k=top_k)
        said = " and ".join([f"top-p {top_p:g}"] * (top_p < 1) + [f"top-k {top_k}"] * bool(top_k))
        yield Experiment(
            f"over {said} only" + (f" at T = {heat:g}" if heat != 1 else ""),
            "the engine's logprobs are of what it sampled from, summing to 1 over the tokens that were left",
            "set logprobs-mode=raw_logprobs, or train with top-p 1 and top-k off: no trainer renormalises",
            replace(state, p=world.trainer(change), trainer=change),
        )
