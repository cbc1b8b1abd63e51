"""Several files of one run, in order: what only shows over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ckptcheck.metrics.gap import Gap, mean_of_directions
from ckptcheck.parity.gates import Gates
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import number_of
from ckptcheck.phrase import count
from ckptcheck.report import Section


@dataclass(frozen=True)
class Member:
    """What is kept of one file. version: the newest of its tokens, None where versions are no numbers."""

    target: str
    step: int | None
    version: int | None
    gap: Gap | None

    @classmethod
    def of(cls, judged: Judged) -> Member:
        """Keep what a series needs, and let the columns go."""
        about = judged.rollouts.metadata
        numbers = [number for version in about.versions if (number := number_of(version)) is not None]
        version = max(numbers) if numbers and len(numbers) == len(about.versions) else None
        return cls(judged.target, about.step, version, judged.measured)


@dataclass(frozen=True)
class Series:
    """Files in the order of their steps, or as they were named where a step is not recorded."""

    members: Sequence[Member]
    gates: Gates = field(default_factory=Gates)
    kind: str = "rollout-series"

    @classmethod
    def of(cls, members: Sequence[Member], gates: Gates) -> Series:
        """Order the files by step; by name order alone where any has none."""
        if all(member.step is not None for member in members):
            members = sorted(members, key=lambda member: member.step or 0)
        return cls(tuple(members), gates)

    @property
    def gaps(self) -> list[Gap]:
        """The gaps of those drawn from the engine that could be compared."""
        return [member.gap for member in self.members if member.gap is not None and member.gap.sampled_by == "engine"]

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Step and newest version, where both are known."""
        return [
            (member.step, member.version)
            for member in self.members
            if member.step is not None and member.version is not None
        ]

    @property
    def both_directions(self) -> tuple[float, float, float] | None:
        """mult_prob_error of the last file of either direction, and their mean; None where there is one direction only."""
        last: dict[str, Gap] = {member.gap.sampled_by: member.gap for member in self.members if member.gap is not None}
        if len(last) < 2:
            return None
        engine, trainer = last["engine"], last["trainer"]
        return engine.mult_prob_error, trainer.mult_prob_error, mean_of_directions(engine, trainer)

    @property
    def target(self) -> str:
        """How many files, from which to which."""
        return f"{self.members[0].target} … {self.members[-1].target}"

    @property
    def subject(self) -> str:
        """The gap over the files."""
        parts = [count(len(self.members), "file")]
        if len(gaps := self.gaps) > 1:
            values = [gap.mult_prob_error for gap in gaps]
            parts.append(f"mult_prob_error from {values[0]:.5g} to {values[-1]:.5g}, at most {max(values):.5g}")
        if (both := self.both_directions) is not None:
            parts.append(f"over both directions {both[2]:.5g}")
        return " · ".join(parts)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The gap of every file."""
        rows = tuple(
            (
                member.target,
                member.step,
                member.gap.tokens,
                member.gap.mult_prob_error,
                member.gap.k3,
                member.gap.abs_mean,
            )
            for member in self.members
            if member.gap is not None
        )
        columns = ("file", "step", "tokens", "mult_prob_error", "k3", "mean |Δ|")
        return (Section("over the files", columns, rows),) if rows else ()

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: every file has a report of its own."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Files; what is in them is counted in their own reports."""
        return {"files": len(self.members), "tensors": 0, "bytes": 0}
