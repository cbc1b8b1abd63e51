"""The trace of a trial of a LoRA adapter: the evidence of its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.runtime.engines.base import EngineInfo, SequenceScores, TensorDigests

Scores = tuple[SequenceScores, ...]
EXACT = 1e-6
"""Nats within which an engine agrees with itself; more if it differs by more when it is asked again."""


@dataclass(frozen=True)
class ServedAdapter:
    """What an engine holds of an adapter, and computes for requests with it."""

    scores: Scores
    slots: TensorDigests
    """Digests of the engine's tensors that hold the adapter, without the number of the slot."""

    def differing_slots(self, other: ServedAdapter) -> list[str]:
        """Return the names of the tensors that are not as in the other one."""
        keys = self.slots.keys() | other.slots.keys()
        return sorted({
            key[1]
            for key in keys
            if key not in self.slots or key not in other.slots or self.slots[key].digest != other.slots[key].digest
        })  # fmt: skip


@dataclass(frozen=True)
class CachedAdapterProbe:
    """One sequence that was in the prefix cache before the adapter was replaced."""

    cached: SequenceScores
    """Right after the replacement."""
    after_reset: SequenceScores
    """After a reset of the cache."""


@dataclass
class LoraTrace(EvidenceDefaults):
    """The evidence of a trial of a LoRA adapter. It grows while the trial runs; what is None was not reached."""

    target: str
    adapter: str
    """The folder of the adapter."""
    update: str = "reload"
    """How the adapter is replaced: reload, inplace or same."""
    slots: int = 2
    """Adapters that the engine holds at once."""
    engine: EngineInfo | None = None
    base: Scores = ()
    """Requests without an adapter, before any was loaded."""
    base_after: Scores | None = None
    """The same after all adapters were loaded."""
    loaded: ServedAdapter | None = None
    """The adapter after its first load."""
    repeat: Scores = ()
    """The same requests asked again."""
    merged: Scores | None = None
    """A cold load of the checkpoint into which the adapter is merged."""
    merged_nudged: Scores = ()
    """The same, with every matrix moved by its last place: what rounding amounts to."""
    evicted: ServedAdapter | None = None
    """The adapter after others took its slot, and it was asked for again."""
    updated: ServedAdapter | None = None
    """Another adapter under the same name."""
    updated_cold: ServedAdapter | None = None
    """That adapter, the first one that an engine loads after its start."""
    cache_probe: CachedAdapterProbe | None = None
    cold_probe: SequenceScores | None = None
    """The sequence of the cache probe, scored by the engine that was started cold."""
    failed_phases: dict[str, str] = field(default_factory=dict)
    """Phase → why it did not finish."""
    kind: str = "lora"
    failed_to: str = "finish"

    @property
    def subject(self) -> str:
        """One line that names the adapter and the engine."""
        engine = f" → {self.engine.name} {self.engine.version} {self.engine.dtype}" if self.engine else ""
        return f"{self.adapter}{engine}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Phases that did not finish; no rule can then pass."""
        return self.failed_phases

    @property
    def counts(self) -> Mapping[str, int]:
        """Tensors that hold the adapter."""
        return {"files": 1, "tensors": len(self.loaded.slots) if self.loaded else 0, "bytes": 0}

    @property
    def sections(self) -> tuple[Section, ...]:
        """The measured differences."""
        rows = tuple((name, diff.most, diff.mean) for name, diff in self._differences())
        return (Section("requests with the adapter (nats)", ("compared with", "most", "mean"), rows),) if rows else ()

    def _differences(self) -> Iterator[tuple[str, LogprobDiff]]:
        if self.loaded is not None:
            yield "requests without it", compare_scores(self.loaded.scores, self.base)
            if self.merged is not None:
                yield "the merged checkpoint", compare_scores(self.loaded.scores, self.merged)
                yield "the merged checkpoint's own rounding (weights moved by their last place)", self.rounding
            if self.evicted is not None:
                yield "after an eviction", compare_scores(self.evicted.scores, self.loaded.scores)
        if self.updated is not None and self.updated_cold is not None:
            yield (
                "replaced under its name, and a cold load of that",
                compare_scores(self.updated.scores, self.updated_cold.scores),
            )

    @property
    def rounding(self) -> LogprobDiff:
        """How far rounding moves the logprobs of the merged checkpoint."""
        return compare_scores(self.merged or (), self.merged_nudged)

    @property
    def exact_tolerance(self) -> float:
        """Nats within which the engine agrees with itself."""
        return max(EXACT, 10 * compare_scores(self.loaded.scores, self.repeat).most) if self.loaded else EXACT


def compare_scores(one: Scores, other: Scores) -> LogprobDiff:
    """Compare the logprobs of the same prompts; no difference where one side has none."""
    if not one or not other:
        return LogprobDiff()
    return compare_logprobs([each.prompt_logprobs for each in one], [each.prompt_logprobs for each in other])
