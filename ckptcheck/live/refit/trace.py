"""The trace of a trial: what it observed, as the evidence of the refit rules."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.refit.observations import Observations
from ckptcheck.live.refit.report_sections import (
    cost_sections,
    coverage_sections,
    identity_sections,
    measurement_sections,
    proof_sections,
    summarize_proof,
)
from ckptcheck.live.runtime.engines.known_issues import EngineIdentity, detect_traits


class RefitTrace(Observations, EvidenceDefaults):
    """The evidence of a trial: rules read the observations, and the report reads the summaries of this class."""

    kind = "refit"
    failed_to = "finish"

    @property
    def subject(self) -> str:
        """One line that names trainer and engine."""
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
        """Phases that did not finish; no rule can then pass."""
        return self.failed_phases

    @property
    def sections(self) -> tuple[Section, ...]:
        """Tables of what the trial measured, and of what each sync and its check cost."""
        return (
            *proof_sections(self),
            *identity_sections(self),
            *measurement_sections(self),
            *coverage_sections(self),
            *cost_sections(self.syncs),
        )

    @property
    def identities(self) -> Mapping[str, str]:
        """The identity of the trainer's weights after the last step, and that of the engine's after the last sync."""
        found = {"trainer": self.trainer_identities.get(max(self.trainer_identities, default=0))}
        if "engine" not in self.identity_gaps and self.syncs:
            found["engine"] = self.engine_identities.get(len(self.syncs))
        return {side: identity for side, identity in found.items() if identity is not None}

    @property
    def headline(self) -> str:
        """How many tensors are equal after how many syncs, and whether the logprobs are within the floor."""
        return summarize_proof(self)

    @property
    def counts(self) -> Mapping[str, int]:
        """Buckets sent, tensors compared, bytes sent."""
        return {
            "files": sum(sync.buckets for sync in self.syncs),
            "tensors": sum(len(sync.manifest) for sync in self.syncs),
            "bytes": sum(sync.nbytes for sync in self.syncs),
        }

    def view_for(self, kind: str) -> object | None:
        """Return the engines for rules on ``engines``, this evidence for its own rules, None for others."""
        if kind == self.kind:
            return self
        if kind != "engines" or self.engine is None:
            return None
        engine = self.engine
        return (
            EngineIdentity(engine.name, engine.version, engine.architecture, detect_traits(engine, self.cold_manifest)),
        )
