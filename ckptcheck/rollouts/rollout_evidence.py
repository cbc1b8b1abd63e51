"""The evidence of one rollout file. Every measurement is computed at most once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Reading, Section
from ckptcheck.linter.rule import SEVERITIES, Finding, Problem, Severity, Skip
from ckptcheck.rollouts.coherence import ResponseShape, measure_nonsense, measure_responses
from ckptcheck.rollouts.gap_causes import GapCauses
from ckptcheck.rollouts.labelled_weights import LabelledWeights
from ckptcheck.rollouts.learning_signal import LearningSignal, measure_signal
from ckptcheck.rollouts.mask_reading import MaskReading, read_mask
from ckptcheck.rollouts.metrics.distribution import ExactKL, Temperature, compute_exact_kl, fit_temperature
from ckptcheck.rollouts.metrics.exactness import Exactness, compare_exactly
from ckptcheck.rollouts.metrics.importance_weights import Correction, Weights, compute_weights
from ckptcheck.rollouts.metrics.logprob_metrics import ClipBounds, LogprobMetrics, compute_metrics, recorded_clip
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor
from ckptcheck.rollouts.metrics.reference_gap import ReferenceGap, measure_reference
from ckptcheck.rollouts.metrics.routing import (
    RoutingShift,
    UnlikeRows,
    compute_routing_disagreement,
    find_routing_shift,
    find_unlike_rows,
)
from ckptcheck.rollouts.metrics.routing_record import RoutingRecord
from ckptcheck.rollouts.metrics.version_gaps import Spans, VersionGaps, find_spans, measure_versions
from ckptcheck.rollouts.response_ends import ResponseEnds, find_response_ends
from ckptcheck.rollouts.response_texts import Decode, build_texts_section
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.rollouts.sampling_checkpoint import ExpertLayout, SamplingCheckpoint
from ckptcheck.rollouts.sections import build_sections, build_versions_section
from ckptcheck.rollouts.thresholds import Thresholds
from ckptcheck.rollouts.token_round_trip import TokenRoundTrip, take_round_trip
from ckptcheck.text.formatting import count, join_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.jobs.job import Job


CAUSES = (
    "PAR003", "PAR007", "PAR009", "PAR010", "PAR012", "PAR028", "PAR029", "PAR031", "PAR032", "PAR065", "PAR069", "PAR078",
    "PAR085", "PAR086", "PAR088",
)  # fmt: skip
"""Rules that name a cause of a gap between two sides."""
SIZES = ("PAR020", "PAR025")
"""Rules that only measure it."""


@dataclass(frozen=True)
class RolloutEvidence(EvidenceDefaults):
    """One file of rollouts. decode: token id → quoted text, decode_text: ids → text; None without a tokenizer."""

    target: str
    rollouts: Rollouts
    thresholds: Thresholds = field(default_factory=Thresholds)
    floor: NoiseFloor | None = None
    decode: Callable[[int], str] | None = None
    kind: str = "rollouts"
    decode_text: Decode | None = None
    drawn_by: SamplingCheckpoint | None = None
    """The checkpoint that drew the tokens; None: not known."""
    weights: tuple[LabelledWeights, ...] = ()
    """The weights behind the versions, by the record of the job's syncs; (): not known."""
    is_alone: bool = True
    """Whether no other file of the run is judged with it. A rule on the series says what shows over several files."""
    job: Job | None = None
    """The job whose rollouts these are; None: not known."""
    is_replay: bool = False
    """Whether the user says that the trainer repeats the engine's choice of experts."""
    memory: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """Answers that several pictures need (`linter.evidence.remembered`)."""

    @property
    def replays(self) -> bool:
        """Whether the trainer repeats the engine's choice of experts, by the user or by the job."""
        return self.is_replay or (self.job is not None and self.job.text("trainer.router_replay") == "rollout")

    def problem(
        self, message: str, *names: str, hint: str, key: str | None = None, severity: Severity | None = None
    ) -> Problem:
        """Make a problem at the setting of the job that is to blame.

        names: of settings in `FIELDS`; the first that the job writes counts. key: the place where it writes none.
        """
        for name in names if self.job is not None else ():
            if self.job is not None and self.job[name].leaf is not None:
                return self.job.problem(message, name, hint, severity)
        return Problem(message, key=key, hint=hint, severity=severity)

    @cached_property
    def correction(self) -> Correction | None:
        """What the job does with the ratios of engine and trainer; None: not known."""
        return Correction.of(self.job)

    @cached_property
    def correction_weights(self) -> Weights | None:
        """The weights that the job's loss has; None where its correction is not known, or is none."""
        if self.correction is None or self.correction == Correction() or self.metrics_or_none is None:
            return None
        return compute_weights(self.correction, self.metrics_or_none, self.rollouts)

    @property
    def expert_layout(self) -> ExpertLayout | None:
        """The experts of the checkpoint that drew the tokens; None: not known, or it has none."""
        return self.drawn_by.expert_layout if self.drawn_by is not None else None

    @cached_property
    def round_trip(self) -> TokenRoundTrip:
        """What becomes of the sequences on their way through text. Raises Skip where nothing can be rendered or decoded."""
        if self.drawn_by is None or self.drawn_by.reader is None:
            raise Skip("the checkpoint has no tokenizer.json that can be read")
        return take_round_trip(self.rollouts, self.drawn_by.reader)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a response, by the checkpoint that drew the tokens and by the file; empty where neither says."""
        known = self.drawn_by.stop_tokens if self.drawn_by is not None else frozenset()
        return known | frozenset(self.rollouts.metadata.stop_tokens)

    @cached_property
    def response_ends(self) -> ResponseEnds:
        """How the responses end. The ids that end them are known (`stop_tokens`)."""
        return find_response_ends(self.rollouts, self.stop_tokens)

    def view_for(self, kind: str) -> RolloutEvidence | None:
        """Return the evidence for the rule on the form of the columns, and for rules on rollouts where the form is right."""
        return self if kind == "columns" or (kind == self.kind and self.is_well_formed) else None

    @property
    def is_well_formed(self) -> bool:
        """Whether the columns have the required form. What rules ask of the evidence may rely on it."""
        return not self.rollouts.defects

    @property
    def has_both_sides(self) -> bool:
        """Whether both sides have logprobs."""
        return self.is_well_formed and {"engine_logprobs", "trainer_logprobs"} <= self.rollouts.columns.keys()

    @cached_property
    def metrics_or_none(self) -> LogprobMetrics | None:
        """The metrics of the gap; None where nothing can be compared (PAR006 reports it)."""
        if not self.has_both_sides:
            return None
        recorded, given = recorded_clip(self.rollouts), self.thresholds
        low = recorded.low if given.clip_low is None else given.clip_low
        high = recorded.high if given.clip_high is None else given.clip_high
        cuts = self.version_spans.cuts if self.version_spans is not None else None
        return compute_metrics(self.rollouts, clip=ClipBounds(low, high), cuts=cuts)

    @cached_property
    def version_gaps(self) -> VersionGaps | None:
        """The gap by weight version; None where both sides' logprobs or a second version are missing."""
        metrics = self.metrics_or_none
        if metrics is None or metrics.pieces is None or self.version_spans is None:
            return None
        return measure_versions(self.version_spans, metrics.pieces)

    @cached_property
    def version_spans(self) -> Spans | None:
        """Where weight versions begin and end; None where there are fewer than two."""
        return find_spans(self.rollouts)

    @property
    def own_version(self) -> str | None:
        """The version of the trainer's weights; None: not known."""
        trainer = self.rollouts.metadata.trainer
        return trainer.weight_version if trainer is not None else None

    @property
    def metrics(self) -> LogprobMetrics:
        """The metrics of the gap. Raises Skip where nothing can be compared."""
        if self.metrics_or_none is None:
            raise Skip("no token could be compared")
        return self.metrics_or_none

    @cached_property
    def reference_gap(self) -> ReferenceGap | None:
        """How far the policy is from the reference model; None where that is not recorded."""
        return measure_reference(self.rollouts)

    @cached_property
    def learning_signal(self) -> LearningSignal | None:
        """What a training step can learn from these; None without rewards and advantages, or without trained tokens."""
        return measure_signal(self.rollouts)

    @cached_property
    def nonsense(self) -> Mapping[int, str | None]:
        """Sequence → what shows that its response is no text (`coherence.NONSENSE`); None for nothing, {} without a tokenizer."""
        if self.decode_text is None:
            return {}
        return measure_nonsense(self.rollouts, self.decode_text, self.rollouts.metadata.vocabulary)

    @property
    def is_nonsense(self) -> bool:
        """Whether at least half of the responses are no text."""
        return 2 * sum(sign is not None for sign in self.nonsense.values()) >= max(1, len(self.nonsense))

    @cached_property
    def response_shapes(self) -> tuple[ResponseShape, ...]:
        """How the tokens of each response repeat themselves."""
        return measure_responses(self.rollouts)

    @cached_property
    def causes(self) -> GapCauses:
        """The causes of the gap that the file shows. Raises Skip where nothing can be compared."""
        reading = None if self.rollouts.holds_prompts_only else self.mask_reading
        return GapCauses(self.rollouts, self.metrics, self.thresholds, reading)

    @cached_property
    def mask_reading(self) -> MaskReading | None:
        """What the recorded response mask covers and leaves out; None where none is recorded."""
        return read_mask(self.rollouts) if "response_mask" in self.rollouts else None

    @property
    def remaining_gap(self) -> LogprobMetrics:
        """The metrics of the tokens whose gap has no known cause. Raises Skip where there is none of them."""
        if self.causes.remaining is None:
            raise Skip("the gap of every compared token has a cause that another rule names")
        return self.causes.remaining

    @cached_property
    def exact_kl(self) -> ExactKL | None:
        """The exact KL, where full-vocabulary logprobs are recorded."""
        return compute_exact_kl(self.rollouts)

    @cached_property
    def temperature_fit(self) -> Temperature | None:
        """The temperature between the two sides, where distributions are recorded."""
        return fit_temperature(self.rollouts)

    @cached_property
    def routing_disagreement(self) -> tuple[NDArray[np.float64], int] | None:
        """The share of tokens in each layer that the sides route differently, and the number of compared tokens."""
        return compute_routing_disagreement(self.rollouts)

    @cached_property
    def unlike_rows(self) -> UnlikeRows | None:
        """Where the two sides route tokens differently; None where a side has no routing, or the shapes differ."""
        return find_unlike_rows(self.rollouts)

    @cached_property
    def exactness(self) -> Exactness:
        """The comparison of both sides' logprobs bit for bit. Both have logprobs (`has_both_sides`)."""
        return compare_exactly(self.rollouts)

    @cached_property
    def routing_records(self) -> tuple[RoutingRecord, ...]:
        """The records of expert routing, the engine's first."""
        experts = self.expert_layout.experts if self.expert_layout is not None else self.rollouts.metadata.experts
        columns = [name for name in ("engine_routing", "trainer_routing") if name in self.rollouts]
        return tuple(RoutingRecord(self.rollouts, name, experts) for name in columns)

    @cached_property
    def routing_shift(self) -> RoutingShift | None:
        """The shift by layers or tokens at which the routing of both sides agrees best; None where a side has none."""
        return find_routing_shift(self.rollouts)

    @property
    def subject(self) -> str:
        """One line with the two sides, the number of compared tokens, and the main metrics of the gap."""
        metadata = self.rollouts.metadata
        sides = [
            f"{side.name} {side.version}".strip() for side in (metadata.engine, metadata.trainer) if side is not None
        ]
        parts = [
            " ↔ ".join(filter(None, sides)),
            metadata.model,
            f"step {metadata.step}" if metadata.step is not None else "",
        ]
        if self.is_well_formed:
            what = "prompt without its response" if self.rollouts.holds_prompts_only else "sequence"
            plural = "prompts without their responses" if self.rollouts.holds_prompts_only else None
            parts.append(count(self.rollouts.sequence_count, what, plural))
        if (metrics := self.metrics_or_none) is not None:
            parts += [
                f"{count(metrics.tokens, 'token')} compared",
                f"mult_prob_error {metrics.mult_prob_error:.5g}",
                f"k3 {metrics.k3:.3g}",
                f"|Δ| mean {metrics.abs_mean:.3g}, max {metrics.abs_max:.3g}",
            ]
        return " · ".join(part for part in parts if part)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The texts, where there is a tokenizer, and the tables of the gap, where something can be compared."""
        texts = (
            (build_texts_section(self.rollouts, self.decode_text),)
            if self.decode_text is not None and self.is_well_formed
            else ()
        )
        metrics = self.metrics_or_none
        if metrics is None:
            return texts
        versions = () if self.version_gaps is None else (build_versions_section(self.version_gaps, self.own_version),)
        return (
            *texts,
            *versions,
            *build_sections(
                metrics,
                self.thresholds,
                self.floor,
                self.decode,
                self.exact_kl,
                self.temperature_fit,
                self.rollouts.metadata.source,
                self.correction,
                self.correction_weights,
            ),
        )

    def arrange(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings with the size of the gap behind its causes, and a hint that names these."""
        causes = tuple(dict.fromkeys(each.code for each in findings if each.code in CAUSES and each.severity != "info"))
        if not causes:
            return findings
        hint = f"fix first what {join_words(causes)} {'names' if len(causes) == 1 else 'name'}: this may follow from it"
        arranged = [structs.replace(each, hint=hint) if each.code in SIZES else each for each in findings]
        return sorted(arranged, key=lambda each: (SEVERITIES.index(each.severity), each.code in SIZES))

    @property
    def reading(self) -> Reading:
        """The columns that no rule judges: unknown ones, and finish reasons where nothing says what they are worth."""
        ignored = list(self.rollouts.unknown)
        if self.is_well_formed and "finish" in self.rollouts and not self.stop_tokens and self.learning_signal is None:
            ignored.append("finish (no stop tokens and no rewards are known)")
        return {"not judged": ignored} if ignored else {}

    @property
    def unread(self) -> Mapping[str, str]:
        """Always empty, because a rule reports what cannot be read."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """One file, the number of its columns as `tensors`, and their bytes."""
        columns = self.rollouts.columns.values()
        return {"files": 1, "tensors": len(columns), "bytes": sum(column.nbytes for column in columns)}
