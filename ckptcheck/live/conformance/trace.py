"""The evidence of a conformance run, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.conformance.faults import TITLES
from ckptcheck.live.conformance.outcome import ANSWERS, Answer, Outcome
from ckptcheck.text.formatting import count, join_words

COLUMNS = ("fault", "where", "answer", "what was seen", "brought back by")


@dataclass(frozen=True)
class ConformanceTrace(EvidenceDefaults):
    """The outcome of every fault that the kit put on a transport."""

    target: str
    subject: str
    outcomes: tuple[Outcome, ...] = ()
    problems: tuple[str, ...] = ()
    """Why a sound update is not proved; () if it is."""
    tensors: int = 0
    """Tensors of the receiver that were digested."""
    updates: int = 0
    """Updates that the kit sent, sound ones too."""
    failed_phases: Mapping[str, str] = field(default_factory=dict)
    """Phase → why it did not finish."""
    kind: str = "conformance"
    failed_to: str = "finish"

    @property
    def unread(self) -> Mapping[str, str]:
        """The phases that did not finish; no rule can then pass."""
        return self.failed_phases

    @property
    def counts(self) -> Mapping[str, int]:
        """Updates sent, and tensors of the receiver."""
        return {"files": self.updates, "tensors": self.tensors, "bytes": 0}

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of faults and answers, and the count of each answer."""
        return (Section("faults and answers", COLUMNS, self._rows, lines=(self.summary,)),)

    @property
    def summary(self) -> str:
        """One line: the number of tried faults, and the count of each answer."""
        numbers: dict[Answer, int] = {}
        for outcome in self.outcomes:
            numbers[outcome.answer] = numbers.get(outcome.answer, 0) + 1
        untried = numbers.pop("untried", 0)
        tried = [f"{numbers[answer]} {ANSWERS[answer].lower()}" for answer in ANSWERS if answer in numbers]
        words = f"{count(sum(numbers.values()), 'fault')} tried: {join_words(tried)}" if tried else "no fault was tried"
        return words + (f"; {untried} not tried, which is no pass" if untried else "")

    def find_outcomes(self, *answers: Answer) -> list[Outcome]:
        """Return the outcomes with one of these answers."""
        return [outcome for outcome in self.outcomes if outcome.answer in answers]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [COLUMNS, ("---",) * len(COLUMNS), *self._rows]
        table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        head = [f"{self.target} ({self.subject})", "", self.summary, ""]
        notes = [f"\nThe sound update is not proved: {problem}." for problem in self.problems]
        notes += [f"\n{phase.capitalize()} did not finish: {reason}." for phase, reason in self.failed_phases.items()]
        return "\n".join([*head, *table, *notes]) + "\n"

    @property
    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (TITLES[outcome.kind], outcome.place, ANSWERS[outcome.answer], outcome.detail, outcome.recovery)
            for outcome in self.outcomes
        )
