"""Changes which distribution the logprobs are of: the model's own (raw), or the sampling distribution (processed)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import SearchState, Trial
from ckptcheck.rollouts.metrics.distribution import fit_temperature

RAW = "the engine returned raw logprobs, and the trainer divides by the temperature"
PROCESSED = "the engine returned processed logprobs, and the trainer's are raw"
USE_PROCESSED = "set logprobs-mode=processed_logprobs, or have the trainer not divide"
USE_RAW = "divide the trainer's logits by the sampling temperature, or set logprobs-mode=raw_logprobs"


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
        raise Skip("no distributions are recorded that would tell one")
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
