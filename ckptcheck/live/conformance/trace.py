"""The outcome of each fault, judged from the transport's answer and the receiver's tensors, and the evidence of a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.conformance.faults import TITLES, Fault, FaultKind, ReceiverState, Reply
from ckptcheck.text.formatting import count, join_truncated, join_words

Answer = Literal["refused", "framework", "ckptcheck", "silent", "harmless", "unanswered", "untried"]
ANSWERS: Mapping[Answer, str] = {
    "refused": "refused",
    "framework": "detected by the framework",
    "ckptcheck": "detected by ckptcheck",
    "silent": "SILENT",
    "harmless": "harmless",
    "unanswered": "no answer",
    "untried": "not tried",
}
"""Answer → its words in a table.

refused: an error, and the receiver holds the old weights. framework: an error, and the receiver holds something else. ckptcheck:
success was reported, or nothing at all, and only the digests of what the receiver holds show the fault. silent: neither shows it.
harmless: the receiver holds exactly the weights that were sent. unanswered: nothing came back in time.
"""
MAX_MESSAGE = 160
"""Characters of a message of the framework."""
COLUMNS = ("fault", "where", "answer", "what was seen", "brought back by")
MAX_PLACES = 3
"""Places that a message names, so that it stays one line."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault at one place."""

    kind: FaultKind
    place: str
    answer: Answer
    detail: str = ""
    """The observation; for "untried" the reason."""
    recovery: str = ""
    """How the receiver came back to sound weights; "" if it never left them."""
    is_stuck: bool = False
    """Whether a sound update afterwards did not restore the weights although the receiver ran."""
    is_wrong_afterwards: bool = False
    """Whether that update reported success and left wrong weights."""
    seconds: float = 0.0


@dataclass(frozen=True)
class KnownStates:
    """The receiver's tensors with each of the two sets of weights, proved by sound updates."""

    old: Mapping[str, str]
    new: Mapping[str, str]
    scratch: frozenset[str] = frozenset()
    """Tensors that differ between two sound updates of the same weights, and are therefore not compared."""

    @property
    def moving(self) -> Set[str]:
        """The tensors that distinguish the two sets of weights."""
        return {name for name, digest in self.new.items() if name not in self.scratch and self.old.get(name) != digest}

    @property
    def unreadable(self) -> Set[str]:
        """The tensors whose numbers cannot be read."""
        return {name for name, digest in self.new.items() if not digest}

    def describe(self, state: ReceiverState) -> tuple[Literal["old", "new", "mixed"], str]:
        """Name the weights that the receiver holds, in one word and in a clause."""
        names = set(self.new) - self.scratch
        is_old = {name for name in names if state.digests.get(name) == self.old.get(name)}
        is_new = {name for name in names if state.digests.get(name) == self.new[name]}
        if is_new == names:
            return "new", "the receiver holds the new weights"
        if is_old == names:
            return "old", "the receiver holds the old weights"
        other = names - is_old - is_new
        numbers = {"new": len(is_new & self.moving), "old": len(is_old & self.moving), "damaged": len(other)}
        parts = [f"{number:,} {word}" for word, number in numbers.items() if number]
        example = f" ({join_truncated(sorted(other), 1)})" if other else ""
        return "mixed", f"of the receiver's {count(len(names), 'tensor')} {join_words(parts)}{example}"


def judge(fault: Fault, reply: Reply, known: KnownStates, state: ReceiverState | None, version: str | None) -> Outcome:
    """Judge one fault. state: the receiver's tensors afterwards, None if unreadable. version: its reported one."""

    def outcome(answer: Answer, *details: str) -> Outcome:
        return Outcome(fault.kind, fault.place, answer, "; ".join(filter(None, (*details, reply.note))))

    quote = f'it said "{_shorten(reply.message)}"' if reply.message else ""
    if not reply.has_ended:
        return outcome("unanswered", quote)
    if state is None and reply.ok:
        return outcome("ckptcheck", "success was reported, and the receiver cannot be read any more")
    if reply.has_died or state is None:
        return outcome("framework", "the receiver ended", quote)
    holds, sentence = known.describe(state)
    if not reply.ok:
        if not reply.is_heard:
            if holds == "old":
                return outcome("refused", "the receiver kept the old weights")
            if holds == "new" and version is None:
                return outcome("harmless", "all weights had arrived, and no further call was due")
            named = f" and calls them version {version}" if version else ""
            return outcome("ckptcheck", f"nothing was reported, and {sentence}{named}")
        return outcome("refused" if holds == "old" else "framework", quote, "" if holds == "old" else sentence)
    if reply.undetectable:
        return outcome("silent", reply.undetectable)
    if holds != "new" and not (holds == "old" and fault.kind == "two-updates"):
        refusal = f'it said "{_shorten(reply.refusal)}"' if reply.refusal else ""
        return outcome("ckptcheck", refusal, f"success was reported, and {sentence}", quote)
    if reply.refusal:
        return outcome("refused", f'it said "{_shorten(reply.refusal)}", and the update went on')
    if fault.loses_weights and known.unreadable:
        return outcome(
            "silent", f"success was reported, and {count(len(known.unreadable), 'tensor')} cannot be read to tell"
        )
    if reply.misreport:
        return outcome("ckptcheck", reply.misreport)
    return outcome("harmless", sentence if holds == "old" else "")


def _shorten(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


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


def group_by_kind(outcomes: Sequence[Outcome]) -> Iterator[tuple[FaultKind, str, list[Outcome]]]:
    """Yield each kind of fault, its description with its places, and its outcomes."""
    groups: dict[FaultKind, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.kind, []).append(outcome)
    for kind, members in groups.items():
        places = [outcome.place for outcome in members if outcome.place]
        shown = [*places[:MAX_PLACES], *([f"{len(places) - MAX_PLACES} more"] if len(places) > MAX_PLACES else [])]
        where = f" ({join_words(shown)})" if places else ""
        yield kind, f"{TITLES[kind]}{where}", members
