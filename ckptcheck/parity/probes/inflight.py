"""What becomes of requests that are running when the weights change, for every way that the engine has to pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Generation, Sampling
from ckptcheck.parity.gap import gap
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.refit.passage import UNLIKE, split, unlike
from ckptcheck.report import Section

TOKENS, AFTER = 16, 5
DRAINS, DROPS = ("wait",), ("abort",)
"""Ways that let running requests end first, and that end them at once; in all others they go on under the new weights."""


@dataclass(frozen=True)
class Passage:
    """One response across an update. pause, clear: how it was paused, and whether caches were cleared.

    finish, tokens: of the response; wanted: tokens that were asked for. changed: the first token that the new weights
    computed, by its logprob; None where none did; earliest: from where on it could be. told: the first token that the
    engine itself says is of the new version; versions: whether it says anything. off: mean |Δ| of the tokens after the
    update to the new weights with clean caches.
    """

    pause: str
    clear: bool
    ok: bool
    finish: str
    tokens: int
    wanted: int
    earliest: int
    changed: int | None
    told: int | None
    versions: bool
    off: float | None

    @property
    def dated(self) -> bool:
        """Whether the engine says it of a token from which on it can be so."""
        latest = self.tokens if self.changed is None else self.changed
        return self.told is not None and self.earliest <= self.told <= latest

    @property
    def unlike_its_name(self) -> str:
        """What became of the response that the way to pause does not say, "" where nothing did.

        Only what is certain: a response that was over before the engine heard of the update tells nothing.
        """
        since = f"tokens from number {self.changed} on are of the new weights"
        if self.pause in DRAINS and self.changed is not None:
            return f"{since}, and it is to let a response under way end first"
        if self.pause in DROPS and self.changed is not None:
            return f"{since}, and it is to end a response under way"
        if self.pause not in DROPS and self.finish not in ("", "length", "stop") and self.tokens < self.wanted:
            ends = "end" if self.pause in DRAINS else "go on"
            return f"{self.tokens} of {self.wanted} tokens came (the engine says {self.finish}), and it is to let a response {ends}"
        return ""

    @property
    def way(self) -> str:
        """``keep, caches cleared``."""
        return f"{self.pause}, caches {'cleared' if self.clear else 'kept'}"


@dataclass(frozen=True)
class InflightSeen:
    """One passage for each way. unlike: nats from which a logprob is not the same."""

    passages: tuple[Passage, ...]
    unlike: float = UNLIKE

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (
                each.pause,
                "cleared" if each.clear else "kept",
                each.finish,
                each.tokens,
                each.changed,
                each.told,
                each.off,
            )
            for each in self.passages
        )
        columns = ("pause", "caches", "finish", "tokens", "new weights from", "said so from", "mean |Δ| after")
        return Section(f"A response of {TOKENS} tokens, the weights updated after {AFTER}", columns, rows)


def probe(bench: Bench) -> Probe:
    """Update under a running request, back and forth, once for each way."""
    engine = yield bench.setup
    updates = bench.updates()
    prompt = bench.prompts[0]
    found = []
    for number, (pause, clear) in enumerate((pause, clear) for pause in engine.pauses for clear in (False, True)):
        old, new = updates[number % 2], updates[1 - number % 2]
        engine.refit(old, engine.transports[0])
        engine.reset_prefix_cache()
        version = f"probe-{number}"
        asked = Sampling(0.0, max_tokens=TOKENS, ignore_eos=True)
        seen = engine.inflight([prompt], asked, new, pause=pause, clear_cache=clear, after=AFTER, version=version)
        made = seen.generations[0]
        found.append(_passage(engine, prompt, made, pause, clear, seen.answer.ok, version, (old, new)))
    engine.refit(updates[0], engine.transports[0])
    engine.reset_prefix_cache()
    return InflightSeen(tuple(found), unlike(engine.info))


def _passage(
    engine: Engine,
    prompt: Sequence[int],
    made: Generation,
    pause: str,
    clear: bool,
    ok: bool,
    version: str,
    updates: tuple[Sequence[object], Sequence[object]],
) -> Passage:
    """Decode the response again under the new weights, then under the old, and see where it passes from one to the other."""
    told = next((place for place, each in enumerate(made.versions) if each == version), None)
    sequence = (*prompt, *made.tokens)
    truths = []
    for parcels in updates:
        engine.refit(parcels, engine.transports[0])  # type: ignore[arg-type]
        engine.reset_prefix_cache()
        truths.append(engine.follow([sequence], len(prompt))[0] if made.tokens else ())
    before, after = truths
    earliest, changed = split(made.logprobs, before, after, unlike(engine.info))
    off = gap([made.logprobs[changed:]], [after[changed:]]).mean if changed is not None else None
    return Passage(
        pause, clear, ok, made.finish, len(made.tokens), TOKENS, earliest, changed, told, bool(made.versions), off
    )
