"""What a trial observes of a trainer and an engine: its syncs, their scores, and what it measures beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.live.refit.draft import Acceptance
from ckptcheck.live.refit.expert_slots import ExpertMove, WrongSlot
from ckptcheck.live.refit.export_comparison import ExportComparison, SourceComparison
from ckptcheck.live.refit.inflight import InflightRequest
from ckptcheck.live.refit.module_errors import ModuleDifference, ModuleErrors
from ckptcheck.live.refit.noise_floor import TrialNoise
from ckptcheck.live.runtime.engines.base import (
    Arrival,
    EngineInfo,
    HostScalars,
    LoadedParameter,
    ScrambleResult,
    SequenceScores,
    TensorDigest,
    TensorDigests,
    UnwrittenElements,
    UpdateResult,
    same_number,
)
from ckptcheck.live.runtime.trainers.base import OptimizerStep, TrainerInfo, UnlikeReplicas, Weight

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis import Verdict

Key = tuple[int, str]
"""Rank and name of an engine's tensor."""


DRAFT = "draft:"
"""Prefix of the engine's names of a draft model's tensors."""


def is_draft(name: str) -> bool:
    """Return whether a tensor of the engine is a draft model's: what it holds changes no sample, only how fast they come."""
    return name.startswith(DRAFT)


@dataclass(frozen=True)
class RankDiagnosis:
    """Why tensors of one rank of the engine differ from a cold load."""

    rank: int
    verdicts: tuple[Verdict, ...] = ()
    """Causes, about the checkpoint's tensors where the engine's are built from known ones."""
    engine_names: Mapping[str, str] = field(default_factory=dict)
    """Tensor of a verdict → the engine's tensor in which it lies."""


@dataclass(frozen=True)
class Sync:
    """One weight sync of a trial, and the weights of the engine after it."""

    number: int
    step: int
    """Optimizer steps that the trainer had taken."""
    bucket_bytes: int
    """Size limit of a bucket."""
    buckets: int
    nbytes: int
    answer: UpdateResult
    sent: Mapping[str, str]
    """Name → digest of what the trainer exported."""
    manifest: TensorDigests
    reference: TensorDigests
    """Manifest of the same engine, started cold from the same weights."""
    draft_answer: UpdateResult | None = None
    """The engine's answer to the update of its draft model; None if the trial sent none."""
    scalars: HostScalars = field(default_factory=dict)
    """Numbers that the engine keeps on the host after the sync, and after its first forward passes if there were any."""
    reference_scalars: HostScalars = field(default_factory=dict)
    """The same numbers of the same engine, started cold from the same weights."""
    bucket_names: tuple[tuple[str, ...], ...] = ()
    """Names of the tensors in each bucket, in the order in which they were sent."""
    unwritten_parts: Mapping[Key, UnwrittenElements] = field(default_factory=dict)
    """Tensor → the marks that the trial wrote before this sync and that are still in it."""
    arrived: tuple[Arrival, ...] | None = None
    """What reached the loader of each rank, in order; None in a timed sync, and for an engine that cannot record it."""
    wrong_slots: tuple[WrongSlot, ...] = ()
    """Copies of experts that differ from a cold load, if the engine holds copies."""
    slots: int = 0
    """How many slots for experts were compared."""
    loaded: Mapping[Key, LoadedParameter] = field(default_factory=dict)
    """The parameters at the moment when the loader had loaded everything; {} if the engine cannot record it."""
    was_marked: bool = False
    """Whether the trial wrote marks before it, so that `unwritten_parts` has all that it did not write."""
    time: str = ""
    """When the sync ended, UTC."""
    seconds: float = 0.0
    """Time of export and update, as a job has them; the engine's own share is in `answer`."""
    check_seconds: float = 0.0
    """Time to digest all that the engine holds afterwards, and to compare it with the reference."""
    sent_seconds: float = 0.0
    """Time to digest what the trainer exports."""
    diagnoses: tuple[RankDiagnosis, ...] = ()
    """The causes, for each rank of the engine that differs."""
    no_diagnosis_reason: str = ""
    """Why the trial did not look for causes, or not for all of them."""
    inflight_request: InflightRequest | None = None
    """The request that ran during the sync, None if none did."""

    @cached_property
    def differing_tensors(self) -> dict[Key, tuple[TensorDigest, TensorDigest]]:
        """Tensors that differ from the reference, as (engine, reference). Unreadable ones are left out."""
        return {
            key: (entry, other)
            for key, entry in self.manifest.items()
            if (other := self.reference.get(key)) is not None
            and not entry.opaque
            and not other.opaque
            and (entry.digest, entry.shape, entry.dtype) != (other.digest, other.shape, other.dtype)
        }

    @cached_property
    def missing_tensors(self) -> dict[Key, TensorDigest]:
        """Tensors that the reference has and the engine lacks, by name."""
        return {key: entry for key, entry in self.reference.items() if key not in self.manifest}

    @cached_property
    def extra_tensors(self) -> dict[Key, TensorDigest]:
        """Tensors that the engine has and the reference lacks."""
        return {key: entry for key, entry in self.manifest.items() if key not in self.reference}

    @cached_property
    def unreadable_tensors(self) -> dict[Key, TensorDigest]:
        """Tensors that can be read in the reference and not in the engine: they are empty now, or packed."""
        return {
            key: entry
            for key, entry in self.manifest.items()
            if entry.opaque and (other := self.reference.get(key)) is not None and not other.opaque
        }

    @property
    def has_unwritten_parameter(self) -> bool:
        """Whether marks are left in any tensor of the served model."""
        return any(not is_draft(name) for _, name in self.unwritten_parts)

    @property
    def has_wrong_parameter(self) -> bool:
        """Whether any parameter of the served model, or copy of an expert, differs from the reference."""
        wrong_entries = [
            *self.missing_tensors.values(),
            *self.extra_tensors.values(),
            *self.unreadable_tensors.values(),
            *(entry for entry, _ in self.differing_tensors.values()),
        ]
        return bool(self.wrong_slots) or any(
            entry.kind == "parameter" and not is_draft(entry.name) for entry in wrong_entries
        )


@dataclass(frozen=True)
class CacheProbe:
    """Three scores, with the weights of a sync, of one sequence that was in the prefix cache before it."""

    cached: SequenceScores
    """Right after the sync."""
    after_reset: SequenceScores
    """After a reset of the cache."""
    cold: SequenceScores | None
    """By the same engine, started cold from the same weights; None if it did not score it."""


@dataclass(frozen=True)
class GreedyText:
    """The tokens that each side added to the prompt."""

    prompt: tuple[int, ...]
    engine: tuple[int, ...]
    trainer: tuple[int, ...]
    gap: float = 0.0
    """Nats by which the trainer prefers its own token over the engine's, where the two first differ; 0 if they never do."""
    engine_text: str = ""
    """The engine's tokens as text, "" without a tokenizer."""
    trainer_text: str = ""

    @property
    def first_divergence(self) -> int | None:
        """The first token that differs, counted from 0; None if all are the same."""
        pairs = enumerate(zip(self.engine, self.trainer, strict=False))
        return next((place for place, (engine, trainer) in pairs if engine != trainer), None)


@dataclass(frozen=True)
class Scoring:
    """The same sequences scored on every side. All logprobs are natural, at temperature 1."""

    after_sync: int
    """Number of the sync before it, 0 for the cold load."""
    sequences: tuple[tuple[int, ...], ...]
    engine: tuple[SequenceScores, ...]
    cold: tuple[SequenceScores, ...]
    """Scores of the same engine, started cold from the same weights."""
    trainer: tuple[tuple[float, ...], ...]
    trainer_repeat: tuple[tuple[float, ...], ...]
    """A second forward pass of the trainer."""
    cache_probe: CacheProbe | None = None
    """A sequence that was in the prefix cache before the sync; None without a cache."""
    forced_decode: tuple[tuple[float, ...], ...] = ()
    """Logprobs of the last tokens of each sequence, decoded step by step; () if the engine cannot decode given tokens."""
    greedy_text: GreedyText | None = None
    """What both sides decode greedily from one prompt."""


@dataclass(frozen=True)
class ImageProbe:
    """Logprobs of the same text after the same image, with the weights of a sync."""

    after_sync: int
    kept: tuple[float, ...]
    """With the engine's cache of images as the sync left it."""
    after_reset: tuple[float, ...]
    """After a reset of that cache; () if the engine fails on the image even then."""
    cold: tuple[float, ...]
    """By the same engine, started cold from the same weights."""
    failure: str = ""
    """How the engine failed on the image before the reset, with `kept` (); "" if it did not fail."""


@dataclass(frozen=True)
class SleepCheck:
    """What an engine held before it slept and after it woke."""

    before: TensorDigests = field(default_factory=dict)
    after: TensorDigests = field(default_factory=dict)
    freed_bytes: int = 0
    level: int = 1
    """2 if the engine dropped its weights, so that only buffers can be compared."""
    no_op_reason: str = ""
    """Why the sleep released no memory."""
    scalars_before: HostScalars = field(default_factory=dict)
    """Numbers that the engine kept on the host."""
    scalars_after: HostScalars = field(default_factory=dict)

    @property
    def changed_tensors(self) -> list[str]:
        """Names of the tensors that differ after the sleep, or are gone."""
        return sorted({
            name
            for (rank, name), entry in self.before.items()
            if (self.level == 1 or entry.kind == "buffer")
            and ((rank, name) not in self.after or self.after[rank, name].digest != entry.digest)
        })  # fmt: skip

    @property
    def changed_scalars(self) -> list[str]:
        """Names of the numbers on the host that differ after the sleep, or are gone, at any level."""
        after = self.scalars_after
        return sorted({key[1] for key, value in self.scalars_before.items() if not same_number(value, after.get(key))})


@dataclass
class Observations:
    """What one trial has observed so far, from the cold load to the last sync. Only the running trial adds to it."""

    target: str
    engine: EngineInfo | None = None
    trainer: TrainerInfo | None = None
    weights: tuple[Weight, ...] = ()
    """What the trainer exports."""
    stream_transport: str = ""
    """The transport, if it joins all buckets into one stream; else ""."""
    ignored_options: Mapping[str, str] = field(default_factory=dict)
    """Switch that the engine did not apply → why."""
    source_comparison: SourceComparison | None = None
    """The trainer's export at step 0 beside the source; None where that was not compared."""
    export_comparisons: list[ExportComparison] = field(default_factory=list)
    """The trainer's export after each step, 0 first, beside what its ranks hold; [] for a trainer that cannot digest its ranks."""
    cold_manifest: TensorDigests = field(default_factory=dict)
    """Manifest after the cold load."""
    cold_scalars: HostScalars = field(default_factory=dict)
    """Numbers that the engine keeps on the host after the cold load and its first forward passes, which change none of them."""
    noise_floor: TrialNoise = field(default_factory=TrialNoise)
    """Noise of both sides, measured after the cold load."""
    scrambled: ScrambleResult = field(default_factory=lambda: ScrambleResult(frozenset()))
    scrambled_manifest: TensorDigests = field(default_factory=dict)
    """Manifest after the scramble."""
    syncs: list[Sync] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    module_differences: dict[int, ModuleDifference] = field(default_factory=dict)
    """Number of a sync after which logprobs are off although weights are right → the module whose output is wrong."""
    module_errors: ModuleErrors | None = None
    """How far the modules of both sides are from float32; None where that was not measured."""
    module_errors_skipped: str = ""
    """Why the trial could not measure `module_errors` when it had to; else ""."""
    steps: list[OptimizerStep] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Bytes that the engine holds after the cold load and after every sync."""
    replica_mismatch: dict[int, tuple[UnlikeReplicas, ...]] = field(default_factory=dict)
    """Step → weights whose copies differ between the trainer's ranks; empty if the trainer has one rank."""
    untrained: tuple[str, ...] = ()
    """Tensors of the source that the trainer does not export and a draft model needs; every cold load gets them from the source."""
    sent_draft: tuple[str, ...] = ()
    """Tensors of the draft model that each sync sends in a session of their own; () if it sends none."""
    acceptances: list[Acceptance] = field(default_factory=list)
    """Acceptance lengths of a draft model, after the cold load and after every sync that was scored; [] without one."""
    image_probes: list[ImageProbe] = field(default_factory=list)
    """Logprobs after an image, for every sync that changed weights; [] for a model without images."""
    images_skipped: str = ""
    """Why the trial gave the engine no image although the model takes images; else ""."""
    expert_move: ExpertMove | None = None
    """How the engine moved its experts between the first two syncs; None if it holds no copies of experts."""
    sleep_check: SleepCheck | None = None
    """What the engine held before and after a sleep."""
    is_fast: bool = False
    """Whether the trial left out all scoring by decoding."""
    clears_cache: bool | None = None
    """Whether the job resets the prefix cache after each sync, and the trial with it; None: not known."""
    sleep_skipped: str = ""
    """Why the engine did not sleep."""
    trainer_identities: dict[int, str] = field(default_factory=dict)
    """Step → identity of the weights that the trainer's ranks hold after it."""
    engine_identities: dict[int, str] = field(default_factory=dict)
    """Number of a sync, 0 for the cold load → identity of the weights that the engine holds after it."""
    identity_gaps: dict[str, str] = field(default_factory=dict)
    """Side (trainer, engine) → why its weights have no identity."""
    cache_unused_reason: str = ""
    """Why the prefix cache cannot keep anything of this model, "" if it can."""
    failed_phases: dict[str, str] = field(default_factory=dict)
    """Phase → why it did not finish. The rules then judge the evidence up to that phase."""
