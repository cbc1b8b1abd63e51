"""Probes what a weight update does to keys and values in the prefix cache, and to requests that run meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.refit.inflight import UNLIKE, InflightRequest, find_switch, logprob_tolerance
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap

ASKED = Sampling(0.0, max_tokens=8, ignore_eos=True)
LEAST, TIMES = 1e-4, 5.0
"""Two answers count as equal if they differ by at most LEAST nats, or by at most TIMES the gap before the update."""
TOKENS, AFTER = 16, 5
DRAINS, DROPS = ("wait",), ("abort",)
"""Pause modes that let running requests end first, and modes that end them at once; in all other modes they continue with the new
weights."""


@dataclass(frozen=True)
class StaleCacheResult:
    """The answers after a weight update with and without the prefix cache."""

    cached: int
    """How many prompt tokens came from the prefix cache after the update."""
    first_token_differs: bool
    """Whether the first token differs from the one under another cache salt, which shares nothing with the cache."""
    gap: GapSummary
    """The gap of the two answers up to the first token that differs."""
    noise: GapSummary
    """The same gap before the update, when both answers are right."""

    @property
    def is_stale(self) -> bool:
        """Whether the cached values differ from what the weights compute."""
        return self.cached > 0 and (
            self.first_token_differs or self.gap.largest > max(LEAST, TIMES * self.noise.largest)
        )


def ask_from_cache(environment: ProbeEnvironment) -> ProbeRun:
    """Fill the cache, update the weights without a reset, as a careless job does, and repeat the request."""
    engine = yield environment.setup
    before, after = environment.updates()
    prompt = tuple((environment.prompts[0] * (3 * environment.block))[: 2 * environment.block + 7])
    engine.reset_prefix_cache()
    engine.generate([prompt], ASKED)
    warm, _, noise = _compare_answers(engine, prompt, "before")
    answer = engine.update_weights(after, engine.transports[0].name)
    cached, first_token_differs, gap = _compare_answers(engine, prompt, "after")
    engine.reset_prefix_cache()
    engine.update_weights(before, engine.transports[0].name)
    engine.reset_prefix_cache()
    if not answer.ok:
        raise Skip(f"the engine refused the update: {answer.message}")
    if not warm:
        raise Skip("no token came from the prefix cache before the update either")
    return StaleCacheResult(cached, first_token_differs, gap, noise)


def _compare_answers(engine: Engine, prompt: tuple[int, ...], salt: str) -> tuple[int, bool, GapSummary]:
    """Request the same answer from the cache and under a cache salt.

    Returns how many prompt tokens were cached, whether the first token differs, and the gap of the two answers up to the first
    token that differs: from there on they continue different texts.
    """
    cached = engine.generate([prompt], ASKED)[0]
    uncached = engine.generate([prompt], ASKED, salt=salt)[0]
    same_count = next(
        (n for n, (a, b) in enumerate(zip(cached.tokens, uncached.tokens, strict=False)) if a != b), len(cached.tokens)
    )
    compared_count = max(1, same_count)
    return (
        cached.cached_tokens,
        not same_count,
        summarize_gap([cached.logprobs[:compared_count]], [uncached.logprobs[:compared_count]]),
    )


@dataclass(frozen=True, kw_only=True)
class InflightResponse(InflightRequest):
    """One response during which the weights were updated."""

    clear: bool
    """Whether the update had to clear the caches."""
    gap_after_update: float | None
    """Mean |Δ| in nats of the tokens after the update, against the new weights with clean caches."""

    @property
    def pause_mismatch(self) -> str:
        """How the response contradicts the name of the pause mode; "" if it does not.

        Covers only what is certain: a response that was over before the engine received the update shows nothing.
        """
        since = f"tokens from number {self.switch_token} on are of the new weights"
        if self.pause in DRAINS and self.switch_token is not None:
            return f"{since}, although this mode has to let a running response end first"
        if self.pause in DROPS and self.switch_token is not None:
            return f"{since}, although this mode has to end a running response"
        if (
            self.pause not in DROPS
            and self.finish not in ("", "length", "stop")
            and self.tokens < self.requested_tokens
        ):
            ends = "end" if self.pause in DRAINS else "go on"
            return (
                f"{self.tokens} of {self.requested_tokens} tokens came (the engine says {self.finish}),"
                f" although this mode has to let a response {ends}"
            )
        return ""

    @property
    def pause_label(self) -> str:
        """``keep, caches cleared``."""
        return f"{self.pause}, caches {'cleared' if self.clear else 'kept'}"


@dataclass(frozen=True)
class InflightProbeResult:
    """The responses in all pause modes, with and without cleared caches."""

    responses: tuple[InflightResponse, ...]
    tolerance: float = UNLIKE
    """Two logprobs that differ by up to this many nats count as equal."""

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (
                response.pause,
                "cleared" if response.clear else "kept",
                response.finish,
                response.tokens,
                response.switch_token,
                response.reported_switch,
                response.gap_after_update,
            )
            for response in self.responses
        )
        columns = ("pause", "caches", "finish", "tokens", "new weights from", "said so from", "mean |Δ| after")
        return Section(f"A response of {TOKENS} tokens, the weights updated after {AFTER}", columns, rows)


def update_under_way(environment: ProbeEnvironment) -> ProbeRun:
    """Update the weights under a running request, back and forth, once for each mode."""
    engine = yield environment.setup
    updates = environment.updates()
    prompt = environment.prompts[0]
    transport = next(row.name for row in engine.transports if row.supports_inflight)
    responses = []
    for number, (pause, clear) in enumerate((pause, clear) for pause in engine.pause_modes for clear in (False, True)):
        old, new = updates[number % 2], updates[1 - number % 2]
        engine.update_weights(old, transport)
        engine.reset_prefix_cache()
        version = f"probe-{number}"
        sampling = Sampling(0.0, max_tokens=TOKENS, ignore_eos=True)
        result = engine.update_inflight(
            [prompt], sampling, new, transport=transport, pause=pause, clear_cache=clear, after=AFTER, version=version
        )
        generation = result.generations[0]
        responses.append(
            _measure_response(
                engine, prompt, generation, pause, clear, result.update.ok, version, (old, new), transport
            )
        )
    engine.update_weights(updates[0], transport)
    engine.reset_prefix_cache()
    return InflightProbeResult(tuple(responses), logprob_tolerance(engine.info))


def _measure_response(
    engine: Engine,
    prompt: Sequence[int],
    generation: Generation,
    pause: str,
    clear: bool,
    ok: bool,
    version: str,
    updates: tuple[Sequence[object], Sequence[object]],
    transport: str,
) -> InflightResponse:
    """Decode the response again under the old and the new weights, and find the token at which the new weights take over.

    updates: the buckets of the old and of the new weights, which travel by the transport. version: the name that the update gave
    to the new weights.
    """
    reported_from = next(
        (position for position, weight_version in enumerate(generation.weight_versions) if weight_version == version),
        None,
    )
    sequence = (*prompt, *generation.tokens)
    reference_logprobs = []
    for buckets in updates:
        engine.update_weights(buckets, transport)  # type: ignore[arg-type]
        engine.reset_prefix_cache()
        reference_logprobs.append(engine.score_by_decode([sequence], len(prompt))[0] if generation.tokens else ())
    before, after = reference_logprobs
    earliest, switch = find_switch(generation.logprobs, before, after, logprob_tolerance(engine.info))
    gap = summarize_gap([generation.logprobs[switch:]], [after[switch:]]).mean if switch is not None else None
    return InflightResponse(
        pause=pause,
        ok=ok,
        finish=generation.finish_reason,
        tokens=len(generation.tokens),
        requested_tokens=TOKENS,
        earliest_switch=earliest,
        switch_token=switch,
        reported_switch=reported_from,
        has_versions=bool(generation.weight_versions),
        clear=clear,
        gap_after_update=gap,
    )
