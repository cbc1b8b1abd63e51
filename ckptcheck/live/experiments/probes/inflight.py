"""Probes what happens to running requests when the weights change, in every pause mode of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.refit.inflight import UNLIKE, find_switch, logprob_tolerance
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.rollouts.gap_summary import summarize_gap

TOKENS, AFTER = 16, 5
DRAINS, DROPS = ("wait",), ("abort",)
"""Pause modes that let running requests end first, and modes that end them at once; in all other modes they continue with the new
weights."""


@dataclass(frozen=True)
class InflightResponse:
    """One response during which the weights were updated."""

    pause: str
    """The pause mode of the update."""
    clear: bool
    """Whether the update had to clear the caches."""
    ok: bool
    """Whether the engine says that the update succeeded."""
    finish: str
    """The engine's finish reason of the response."""
    tokens: int
    """How many tokens the response has."""
    requested_tokens: int
    """How many tokens the request asked for."""
    earliest: int
    """The first token that the new weights may have computed, by its logprob."""
    changed: int | None
    """The first token that the old weights cannot have computed, by its logprob; None where there is none."""
    reported_from: int | None
    """The first token that the engine reports with the new weight version; None where there is none."""
    versions: bool
    """Whether the engine reports weight versions of tokens at all."""
    gap_after_update: float | None
    """Mean |Δ| in nats of the tokens after the update, against the new weights with clean caches."""

    @property
    def is_dated_correctly(self) -> bool:
        """Whether the new weights can begin at the token from which on the engine reports the new version."""
        latest = self.tokens if self.changed is None else self.changed
        return self.reported_from is not None and self.earliest <= self.reported_from <= latest

    @property
    def pause_mismatch(self) -> str:
        """How the response contradicts the name of the pause mode; "" if it does not.

        Covers only what is certain: a response that was over before the engine received the update shows nothing.
        """
        since = f"tokens from number {self.changed} on are of the new weights"
        if self.pause in DRAINS and self.changed is not None:
            return f"{since}, although this mode has to let a running response end first"
        if self.pause in DROPS and self.changed is not None:
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
                response.changed,
                response.reported_from,
                response.gap_after_update,
            )
            for response in self.responses
        )
        columns = ("pause", "caches", "finish", "tokens", "new weights from", "said so from", "mean |Δ| after")
        return Section(f"A response of {TOKENS} tokens, the weights updated after {AFTER}", columns, rows)


def probe(environment: ProbeEnvironment) -> ProbeRun:
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
    earliest, changed = find_switch(generation.logprobs, before, after, logprob_tolerance(engine.info))
    gap = summarize_gap([generation.logprobs[changed:]], [after[changed:]]).mean if changed is not None else None
    return InflightResponse(
        pause,
        clear,
        ok,
        generation.finish_reason,
        len(generation.tokens),
        TOKENS,
        earliest,
        changed,
        reported_from,
        bool(generation.weight_versions),
        gap,
    )
