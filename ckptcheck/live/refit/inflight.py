"""A request that runs during a sync: how it ends, and from which token on the new weights compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ckptcheck.live.runtime.engines.base import Bucket, Engine, EngineInfo, UpdateResult
from ckptcheck.live.runtime.engines.capabilities import why_not_forced
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling

TOKENS = 32
"""Tokens that the request asks for."""
AFTER = 8
"""Tokens that the response has when the update begins."""
UNLIKE, NARROW = 1e-4, 0.05
"""Nats from which two logprobs count as different, in float32 and in narrower types."""


@dataclass(frozen=True)
class InflightRequest:
    """One response across an update. Fields count tokens from 0, unless their text says from 1."""

    pause: str
    """What the engine does with running requests during an update."""
    ok: bool
    """Whether the update reported success."""
    finish: str
    """Finish reason of the response."""
    tokens: int
    """Number of tokens in the response."""
    requested_tokens: int
    earliest_switch: int
    """The first token that the new weights could have computed."""
    switch_token: int | None
    """The first token that the old weights did not compute, by its logprob; None if there is none."""
    reported_switch: int | None
    """The first token that the engine reports with the new version; None if there is none."""
    has_versions: bool
    """Whether the engine reports versions that tell old weights from new."""
    is_observable: bool = True
    """Whether the logprobs show which weights computed the tokens."""

    @property
    def first_new_token(self) -> int | None:
        """The first token of the new weights, counted from 1."""
        return None if self.switch_token is None else self.switch_token + 1

    @property
    def reported_new_token(self) -> int | None:
        """The first token that the engine reports with the new version, counted from 1."""
        return None if self.reported_switch is None else self.reported_switch + 1

    @property
    def is_truncated(self) -> bool:
        """Whether the response is short although the pause keeps requests, or without being reported as aborted."""
        is_reported_abort = self.pause == "abort" and self.finish not in ("", "length", "stop")
        return self.tokens < self.requested_tokens and not is_reported_abort

    @property
    def has_version_mismatch(self) -> bool:
        """Whether the engine reports old tokens as new or new ones as old. A refused update changes nothing."""
        if not (self.has_versions and self.is_observable) or not (self.ok or self.reported_switch is not None):
            return False
        if self.reported_switch is None:
            return self.switch_token is not None
        latest_switch = self.tokens if self.switch_token is None else self.switch_token
        return not self.earliest_switch <= self.reported_switch <= latest_switch


@dataclass
class InflightUpdate:
    """An update during which a request runs."""

    pause: str
    """What the engine does with the running request."""
    prompt: tuple[int, ...]
    version: str
    """Weight version of the weights that are sent."""
    request: InflightRequest | None = None
    """How the request ended; None until the update is over."""

    def refit(self, engine: Engine, parcels: Sequence[Bucket], transport: str) -> UpdateResult:
        """Update the weights by a transport once the request has a few tokens.

        The same request runs to its end first, for the response of the old weights.
        """
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        (old,) = engine.generate([self.prompt], sampling, salt=f"before-{self.version}")
        result = engine.update_inflight(
            [self.prompt], sampling, parcels, transport=transport, pause=self.pause, clear_cache=True, after=AFTER,
            version=self.version,
        )  # fmt: skip
        (response,) = result.generations
        self.request = self._locate_switch(engine, old, response, ok=result.update.ok)
        return result.update

    def _locate_switch(self, engine: Engine, old: Generation, response: Generation, *, ok: bool) -> InflightRequest:
        """Find the token from which on the new weights computed the response, by its logprobs and as the engine reports."""
        # if the engine cannot decode given tokens, the old logprobs stand in for the new ones: any token may be of either
        new: Sequence[float] = old.logprobs
        if response.tokens and not why_not_forced(engine.info):
            new = engine.score_by_decode([(*self.prompt, *response.tokens)], len(self.prompt))[0]
        pairs = enumerate(zip(response.tokens, old.tokens, strict=False))
        divergence = next((place for place, (token, old_token) in pairs if token != old_token), None)
        end = min(len(response.tokens), len(old.tokens), len(new)) if divergence is None else divergence + 1
        earliest, switch = find_switch(
            response.logprobs[:end], old.logprobs[:end], new[:end], logprob_tolerance(engine.info)
        )
        versions = enumerate(response.weight_versions)
        reported = next((place for place, version in versions if version == self.version), None)
        tokens_before = min(AFTER, len(response.tokens))
        # a switch before the update began means that the old weights do not repeat their own logprobs
        is_observable = divergence is None if switch is None else switch >= tokens_before
        return InflightRequest(
            pause=self.pause,
            ok=ok,
            finish=response.finish_reason,
            tokens=len(response.tokens),
            requested_tokens=TOKENS,
            earliest_switch=max(earliest, tokens_before),
            switch_token=switch,
            reported_switch=reported,
            has_versions=bool(response.weight_versions) and self.version not in old.weight_versions,
            is_observable=is_observable,
        )


def logprob_tolerance(engine: EngineInfo) -> float:
    """Return the nats from which two logprobs of this engine count as different."""
    return UNLIKE if engine.dtype == "float32" else NARROW


def find_switch(
    response: Sequence[float], old: Sequence[float], new: Sequence[float], tolerance: float = UNLIKE
) -> tuple[int, int | None]:
    """Return the first token that the new weights may have computed, and the first that the old ones did not (None: no such token).

    response, old, new: logprobs (nats) of the same tokens: in the response, by the old weights alone, and by the new ones alone.
    If both weights give a token nearly the same logprob, it does not show which computed it; the switch may be at any such token
    before the first that shows it. Later tokens do not count, because they may attend to keys of the old weights.
    """
    earliest = 0
    for place, (value, before, after) in enumerate(zip(response, old, new, strict=True)):
        if _abs_diff(value, before) > tolerance:
            return earliest, place
        if _abs_diff(after, before) > 10 * tolerance:
            earliest = place + 1
    return earliest, None


def _abs_diff(first: float, second: float) -> float:
    """Return the absolute difference; 0 between two NaN, infinite between a NaN and a number."""
    if first == second or (first != first and second != second):
        return 0.0
    return abs(first - second) if first == first and second == second else inf
