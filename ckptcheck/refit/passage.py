"""A request that runs when the weights change: what became of it, and where its tokens pass from the old weights to the new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ckptcheck.engines.base import Answer, Engine, EngineInfo, Parcel
from ckptcheck.engines.sampling import Generation, Sampling
from ckptcheck.refit.floor import unforced

TOKENS = 32
"""That the request is asked for."""
AFTER = 8
"""Tokens that it has when the update begins."""
UNLIKE, NARROW = 1e-4, 0.05
"""Nats from which a logprob is not the same, in float32 and in narrower types."""


@dataclass(frozen=True)
class Passage:
    """One response across an update.

    finish, tokens: of the response; wanted: tokens that were asked for. changed: the first token that the old weights did not
    compute, by its logprob, None where none is known; earliest: from where on it could be. told: the first token that the engine
    itself says is of the new version. dates: whether it says versions that tell old from new. known: whether it could be seen
    which weights computed the tokens.
    """

    pause: str
    ok: bool
    finish: str
    tokens: int
    wanted: int
    earliest: int
    changed: int | None
    told: int | None
    dates: bool
    known: bool = True

    @property
    def first(self) -> int | None:
        """The number of the first token that is of the new weights, counted from 1."""
        return None if self.changed is None else self.changed + 1

    @property
    def said(self) -> int | None:
        """The number of the first token of which the engine says so."""
        return None if self.told is None else self.told + 1

    @property
    def cut(self) -> bool:
        """Whether it is short and should not be: the pause keeps requests, or nothing says that it was aborted."""
        honest = self.pause == "abort" and self.finish not in ("", "length", "stop")
        return self.tokens < self.wanted and not honest

    @property
    def misdated(self) -> bool:
        """Whether the engine calls old tokens new or new ones old. A refused update changes nothing."""
        if not (self.dates and self.known) or not (self.ok or self.told is not None):
            return False
        if self.told is None:
            return self.changed is not None
        return not self.earliest <= self.told <= (self.tokens if self.changed is None else self.changed)


@dataclass
class Busy:
    """The request that runs when an update comes. pause: what the engine does with it; version: of the weights that are sent.

    passage: what became of it, once the update is over.
    """

    pause: str
    prompt: tuple[int, ...]
    version: str
    passage: Passage | None = None

    def refit(self, engine: Engine, parcels: Sequence[Parcel]) -> Answer:
        """Update by the engine's one route for that, once the request has a few tokens.

        The same is asked before, to its end, so that it is known what the old weights say.
        """
        asked = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        (old,) = engine.generate([self.prompt], asked, salt=f"before-{self.version}")
        done = engine.inflight(
            [self.prompt], asked, parcels, pause=self.pause, clear_cache=True, after=AFTER, version=self.version
        )
        (made,) = done.generations
        self.passage = self._passed(engine, old, made, ok=done.answer.ok)
        return done.answer

    def _passed(self, engine: Engine, old: Generation, made: Generation, *, ok: bool) -> Passage:
        new: Sequence[float] = old.logprobs  # where it cannot be known, nothing is asked of it
        if made.tokens and not unforced(engine.info):
            new = engine.follow([(*self.prompt, *made.tokens)], len(self.prompt))[0]
        pairs = zip(made.tokens, old.tokens, strict=False)
        parts = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        end = min(len(made.tokens), len(old.tokens), len(new)) if parts is None else parts + 1
        values = (made.logprobs[:end], old.logprobs[:end], new[:end])
        earliest, changed = split(*values, unlike(engine.info))
        told = next((place for place, each in enumerate(made.versions) if each == self.version), None)
        least = min(AFTER, len(made.tokens))
        return Passage(
            pause=self.pause,
            ok=ok,
            finish=made.finish,
            tokens=len(made.tokens),
            wanted=TOKENS,
            earliest=max(earliest, least),
            changed=changed,
            told=told,
            dates=bool(made.versions) and self.version not in old.versions,
            known=parts is None
            if changed is None
            else changed >= least,  # else the old weights do not repeat themselves
        )


def unlike(engine: EngineInfo) -> float:
    """Return the nats from which a logprob of this engine is not the same."""
    return UNLIKE if engine.dtype == "float32" else NARROW


def split(
    said: Sequence[float], before: Sequence[float], after: Sequence[float], unlike: float = UNLIKE
) -> tuple[int, int | None]:
    """Return from where on a response could be of the new weights, and the first token that is not of the old ones, or None.

    said, before, after: logprobs (nats) of the same tokens, as they came, and by the old and the new weights alone. Tokens
    that both weights give nearly the same logprob tell nothing, so the passage may be at any of those before the first that
    tells. From it on old keys may still be mixed in, so nothing is asked of the later ones.
    """
    earliest = 0
    for place, (value, old, new) in enumerate(zip(said, before, after, strict=True)):
        if _apart(value, old) > unlike:
            return earliest, place
        if _apart(new, old) > 10 * unlike:
            earliest = place + 1
    return earliest, None


def _apart(one: float, other: float) -> float:
    """Return how far logprobs are from each other; NaN is far from all but itself."""
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) if one == one and other == other else inf
