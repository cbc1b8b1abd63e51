"""Judges the outcome of a fault, from the transport's answer and the receiver's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

from ckptcheck.live.conformance.faults import Fault, FaultKind
from ckptcheck.live.conformance.subject import ReceiverState, Reply
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
                return outcome("harmless", "all weights had come, and it has no end that was missed")
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
