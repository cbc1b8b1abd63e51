"""What was seen of servers that somebody else started: the evidence of their rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.engines.base import Scores
from ckptcheck.engines.known import Running, traits_told
from ckptcheck.servers.base import NOTHING, About, Answered
from ckptcheck.servers.layout import copied, of_draft
from ckptcheck.trainers.base import TrainerInfo


@dataclass(frozen=True)
class Written:
    """What came of overwriting its weights and having it load the checkpoint from its disk.

    answer: not ok also where nobody knows what it holds now. before, scrambled, after: its checksums. asked, told: the weight
    version that was set, and what it says afterwards.
    """

    answer: Answered
    before: Mapping[str, str]
    scrambled: Mapping[str, str]
    after: Mapping[str, str]
    asked: str = ""
    told: str = ""


@dataclass(frozen=True)
class Seen:
    """One server. refused: ``checksums``, ``logprobs`` or ``update`` → why they could not be had.

    checksums: ``rank/name`` → hexadecimal. dead: why it generates nothing; "" where it does.
    """

    url: str
    about: About
    checksums: Mapping[str, str] = field(default_factory=dict)
    scores: tuple[Scores, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    dead: str = ""
    written: Written | None = None

    @cached_property
    def readable(self) -> dict[str, str]:
        """The checksums that are of something: a packed weight leaves that of no bytes behind."""
        return {place: value for place, value in self.checksums.items() if value not in NOTHING}

    @cached_property
    def weights(self) -> dict[str, frozenset[str]]:
        """``rank/name`` within one copy of the model → what its copies have there: more than one where they disagree."""
        return self.held(self.checksums)

    @cached_property
    def drafts(self) -> dict[str, str]:
        """The checksums that are readable and of a draft model."""
        return {place: value for place, value in self.readable.items() if of_draft(place)}

    def held(self, checksums: Mapping[str, str]) -> dict[str, frozenset[str]]:
        """Put together the checksums of the copies of the model, without its draft models and what is not readable."""
        found: dict[str, set[str]] = {}
        for place, value in checksums.items():
            if value not in NOTHING and not of_draft(place):
                found.setdefault(copied(place) if self.about.layout.copies > 1 else place, set()).add(value)
        return {place: frozenset(values) for place, values in found.items()}

    @cached_property
    def silent(self) -> str:
        """Which of its ranks gave no checksum; "" where all did, or where it does not say how many there are."""
        ranks = self.about.layout.ranks * self.about.layout.copies
        told = len({place.partition("/")[0] for place in self.checksums if not of_draft(place)})
        return f"{self.url} gives checksums of {told} of its {ranks} ranks" if 0 < told < ranks else ""


@dataclass(frozen=True)
class Attached:
    """Servers, and what they are held against.

    sequences: token ids that all of them scored. reference: the same engine, started here from the checkpoint; unfit: why
    its checksums do not compare. truth: the trainer's logprobs of the sequences; untold: why there are none.
    broken: what could not be compared → why. traits, architecture: of what they should serve, see
    engines/known.toml; "" where nobody says.
    """

    target: str
    servers: tuple[Seen, ...]
    sequences: tuple[tuple[int, ...], ...] = ()
    reference: Seen | None = None
    unfit: str = ""
    trainer: TrainerInfo | None = None
    truth: tuple[tuple[float, ...], ...] = ()
    untold: str = ""
    broken: Mapping[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    architecture: str = ""
    kind: str = "servers"
    failed_to: str = "compare"

    @property
    def subject(self) -> str:
        """One line that says what met what."""
        sides = [f"{seen.about.name or seen.about.engine} at {seen.url}" for seen in self.servers]
        against = [f"{self.reference.about.name} started here"] if self.reference is not None else []
        if self.trainer is not None:
            against.append(f"{self.trainer.name} {self.trainer.version} {self.trainer.dtype}")
        return " and ".join(sides) + (f" · held against {' and '.join(against)}" if against else "")

    @property
    def unread(self) -> Mapping[str, str]:
        """What could not be compared: nothing that was seen before can then pass."""
        return self.broken

    @property
    def counts(self) -> Mapping[str, int]:
        """Servers, tensors with a checksum; how many bytes they have, servers do not say."""
        return {"files": 0, "tensors": sum(len(seen.checksums) for seen in self.servers), "bytes": 0}

    def aspect(self, kind: str) -> tuple[Running, ...] | None:
        """Offer rules on ``engines`` what runs."""
        if kind != "engines":
            return None
        return tuple(self._running(seen) for seen in self.servers if seen.about.version)

    def _running(self, seen: Seen) -> Running:
        about = seen.about
        architecture = about.architecture or self.architecture  # vLLM 0.32 does not say it
        told = [about.device, "draft" if about.layout.drafts else ""]
        names = [place.partition("/")[2] for place in seen.checksums if not of_draft(place)]
        traits = self.traits | traits_told(told, architecture, about.layout.quantization, names)
        return Running(about.engine, about.version, architecture, traits, seen.url)
