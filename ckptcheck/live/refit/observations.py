"""What a trial has measured so far, until it becomes the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ckptcheck.live.refit.compute_path import ModuleDifference
from ckptcheck.live.refit.draft import Acceptance
from ckptcheck.live.refit.expert_slots import ExpertMove
from ckptcheck.live.refit.export_comparison import ExportComparison
from ckptcheck.live.refit.image_probe import ImageProbe
from ckptcheck.live.refit.module_errors import ModuleErrors
from ckptcheck.live.refit.noise_floor import TrialNoise
from ckptcheck.live.refit.sleep_cycle import SleepCheck
from ckptcheck.live.refit.source_comparison import SourceComparison
from ckptcheck.live.refit.trace import Key, RefitTrace, Scoring, Sync
from ckptcheck.live.runtime.engines.base import EngineInfo, HostScalars, ScrambleResult, TensorDigests
from ckptcheck.live.runtime.trainers.base import OptimizerStep, TrainerInfo, UnlikeReplicas, Weight


@dataclass
class TrialObservations:
    """What a trial has measured so far. It grows while the trial runs; `to_trace` builds the trace from it at the end."""

    target: str
    cache_unused_reason: str
    engine: EngineInfo | None = None
    trainer: TrainerInfo | None = None
    weights: tuple[Weight, ...] = ()
    stream_transport: str = ""
    ignored_options: Mapping[str, str] = field(default_factory=dict)
    source_comparison: SourceComparison | None = None
    export_comparisons: list[ExportComparison] = field(default_factory=list)
    cold_manifest: TensorDigests = field(default_factory=dict)
    cold_scalars: HostScalars = field(default_factory=dict)
    noise_floor: TrialNoise = field(default_factory=TrialNoise)
    scrambled: ScrambleResult = field(default_factory=lambda: ScrambleResult(frozenset()))
    scrambled_manifest: TensorDigests = field(default_factory=dict)
    syncs: list[Sync] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    module_differences: dict[int, ModuleDifference] = field(default_factory=dict)
    module_errors: ModuleErrors | None = None
    module_errors_skipped: str = ""
    steps: list[OptimizerStep] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    replica_mismatch: dict[int, tuple[UnlikeReplicas, ...]] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    sent_draft: tuple[str, ...] = ()
    acceptances: list[Acceptance] = field(default_factory=list)
    image_probes: list[ImageProbe] = field(default_factory=list)
    images_skipped: str = ""
    expert_move: ExpertMove | None = None
    sleep_check: SleepCheck | None = None
    is_fast: bool = False
    sleep_skipped: str = ""
    unsynced_changes: dict[int, Mapping[Key, bool]] = field(default_factory=dict)
    trainer_identities: dict[int, str] = field(default_factory=dict)
    engine_identities: dict[int, str] = field(default_factory=dict)
    identity_gaps: dict[str, str] = field(default_factory=dict)
    failed_phases: dict[str, str] = field(default_factory=dict)

    def to_trace(self) -> RefitTrace:
        """Return the evidence for the rules: the same fields, and no list in it grows any more."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            values[each.name] = tuple(value) if isinstance(value, list) else value
        return RefitTrace(**values)
