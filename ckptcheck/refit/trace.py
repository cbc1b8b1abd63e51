"""What was seen of a refit: the evidence of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.engines.base import Answer, EngineInfo, Entry, Leftover, Manifest, Scores, Scrambled
from ckptcheck.engines.known import Running, traits
from ckptcheck.refit.cost import costs
from ckptcheck.refit.floor import Floor
from ckptcheck.refit.nap import Nap
from ckptcheck.refit.passage import Passage
from ckptcheck.refit.speech import Speech
from ckptcheck.report import Section
from ckptcheck.trainers.base import Step, TrainerInfo, Weight

if TYPE_CHECKING:
    from ckptcheck.diagnosis import Verdict

Key = tuple[int, str]
"""Rank and name of an engine's tensor."""


@dataclass(frozen=True)
class Sync:
    """One weight sync, and what the engine held afterwards. time: when it ended, UTC.

    step: optimizer steps that the trainer had taken. bucket_bytes: the largest bucket. sent: name → digest of what the trainer
    exported. reference: manifest of the same engine, started cold from the same weights. leftovers: marks that are still
    there. seconds: of the sync as a job has it, export and update; the engine's own share is in `answer`. check_seconds: the
    digests of all that the engine holds afterwards, and their comparison; sent_seconds: the digests of what the trainer exports.
    verdicts: causes of what differs; unexplained: why they were not looked for, or not for all. passage: what became of a request
    that ran meanwhile, None where none did.
    """

    number: int
    step: int
    bucket_bytes: int
    buckets: int
    nbytes: int
    answer: Answer
    sent: Mapping[str, str]
    manifest: Manifest
    reference: Manifest
    leftovers: Mapping[Key, Leftover] = field(default_factory=dict)
    time: str = ""
    seconds: float = 0.0
    check_seconds: float = 0.0
    sent_seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = ()
    unexplained: str = ""
    passage: Passage | None = None

    @cached_property
    def differing(self) -> dict[Key, tuple[Entry, Entry]]:
        """Tensors that are not what a cold load gives: (here, there). Those that cannot be read are left out."""
        return {
            key: (entry, other)
            for key, entry in self.manifest.items()
            if (other := self.reference.get(key)) is not None
            and not entry.opaque
            and not other.opaque
            and (entry.digest, entry.shape, entry.dtype) != (other.digest, other.shape, other.dtype)
        }

    @cached_property
    def gone(self) -> dict[Key, Entry]:
        """What a cold load has and this engine has not, under its name."""
        return {key: entry for key, entry in self.reference.items() if key not in self.manifest}

    @cached_property
    def new(self) -> dict[Key, Entry]:
        """What this engine has and a cold load has not."""
        return {key: entry for key, entry in self.manifest.items() if key not in self.reference}

    @cached_property
    def hidden(self) -> dict[Key, Entry]:
        """What can be read in a cold load and not here: it is empty now, or packed."""
        return {
            key: entry
            for key, entry in self.manifest.items()
            if entry.opaque and (other := self.reference.get(key)) is not None and not other.opaque
        }

    @property
    def wrong(self) -> bool:
        """Whether a parameter is not what a cold load gives."""
        unlike = [
            *self.gone.values(),
            *self.new.values(),
            *self.hidden.values(),
            *(here for here, _ in self.differing.values()),
        ]
        return any(entry.kind == "parameter" for entry in unlike)


@dataclass(frozen=True)
class Scoring:
    """The same sequences scored on every side. All logprobs are natural, at temperature 1.

    after: the number of the sync before it, 0 for the cold load. engine: the engine under test. cold: the same engine started
    cold from the same weights. trainer, again: two forward passes of the trainer. warm: the sequences whose keys and
    values were cached before the sync, scored without, and then with, a reset of the prefix cache.
    forced: the last tokens of each sequence, by steps of decoding in the engine, () where it cannot be made to.
    speech: what both sides decode greedily from one prompt.
    """

    after: int
    sequences: tuple[tuple[int, ...], ...]
    engine: tuple[Scores, ...]
    cold: tuple[Scores, ...]
    trainer: tuple[tuple[float, ...], ...]
    again: tuple[tuple[float, ...], ...]
    warm: tuple[tuple[Scores, Scores], ...] = ()
    forced: tuple[tuple[float, ...], ...] = ()
    speech: Speech | None = None


@dataclass(frozen=True)
class RefitTrace:
    """A trial from the cold load to the last sync.

    weights: what the trainer exports. streamed: the transport, where it makes one stream of all buckets, else "". ignored:
    switches that the engine did not take → why. cold: manifest after the cold load. floor: noise of both sides, measured
    then. marked: manifest after scrambling. nap: what the engine held before and after a sleep; awake: why it did not sleep.
    unkept: why the prefix cache cannot keep anything of this model, "" where it can. memory: bytes of the engine after the
    cold load and after every sync. unlike: step → weights of which the trainer's ranks hold different copies, () for none;
    empty where it has one rank. broken: phase → why it could not be finished; the rules then judge what was seen until there.
    """

    target: str
    engine: EngineInfo | None = None
    trainer: TrainerInfo | None = None
    weights: tuple[Weight, ...] = ()
    streamed: str = ""
    ignored: Mapping[str, str] = field(default_factory=dict)
    cold: Manifest = field(default_factory=dict)
    floor: Floor = field(default_factory=Floor)
    scrambled: Scrambled = field(default_factory=lambda: Scrambled(frozenset()))
    marked: Manifest = field(default_factory=dict)
    syncs: tuple[Sync, ...] = ()
    scorings: tuple[Scoring, ...] = ()
    steps: tuple[Step, ...] = ()
    memory: tuple[int, ...] = ()
    unlike: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    nap: Nap | None = None
    awake: str = ""
    unkept: str = ""
    broken: Mapping[str, str] = field(default_factory=dict)
    kind: str = "refit"
    failed_to: str = "finish"

    @property
    def subject(self) -> str:
        """One line that says what met what."""
        sides = []
        if self.trainer is not None:
            layout = f" {self.trainer.layout}" if self.trainer.layout else ""
            sides.append(f"{self.trainer.name} {self.trainer.version}{layout} {self.trainer.dtype}")
        if self.engine is not None:
            ranks = f" ×{self.engine.ranks}" if self.engine.ranks > 1 else ""
            sides.append(f"{self.engine.name} {self.engine.version}{ranks} {self.engine.dtype}")
        return " → ".join(sides)

    @property
    def unread(self) -> Mapping[str, str]:
        """Phases that were not finished: nothing that was seen before can then pass."""
        return self.broken

    @property
    def sections(self) -> tuple[Section, ...]:
        """What was measured, and what each sync cost beside what it cost to check it."""
        from ckptcheck.refit.measured import measured
        from ckptcheck.refit.unseen import unseen

        return (*measured(self), *unseen(self), *costs(self.syncs))

    @property
    def counts(self) -> Mapping[str, int]:
        """Buckets sent, tensors compared, bytes sent."""
        return {
            "files": sum(sync.buckets for sync in self.syncs),
            "tensors": sum(len(sync.manifest) for sync in self.syncs),
            "bytes": sum(sync.nbytes for sync in self.syncs),
        }

    def aspect(self, kind: str) -> tuple[Running, ...] | None:
        """Offer rules on ``engines`` what runs."""
        if kind != "engines" or self.engine is None:
            return None
        engine = self.engine
        return (Running(engine.name, engine.version, engine.architecture, traits(engine, self.cold)),)
