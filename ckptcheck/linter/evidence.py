"""The interface of evidence towards the runner, and the memory for answers that several rules need."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from ckptcheck.linter.report import Reading, Section
    from ckptcheck.linter.rule import Finding

P = ParamSpec("P")
R = TypeVar("R")


class EvidenceDefaults(Protocol):
    """What evidence answers unless it says more: for one without measurements, read whole, with one kind of rules."""

    @property
    def kind(self) -> str:
        """The kind of evidence; a rule with the same `on` checks it."""
        ...

    @property
    def sections(self) -> tuple[Section, ...]:
        """Measurements for the reader of the report: none."""
        return ()

    @property
    def failed_to(self) -> str:
        """The verb for what could not be done with the `unread`."""
        return "read"

    def view_for(self, kind: str) -> object | None:
        """Return the evidence itself for rules on its own kind, None for others."""
        return self if kind == self.kind else None

    def require(self, kind: str) -> None:
        """Raise Skip with the reason if rules on this kind cannot check, before any does other work. Rules on every kind can."""
        return

    @property
    def reading(self) -> Reading:
        """What was read of the target: nothing, because the report gives it elsewhere."""
        return {}

    @property
    def identities(self) -> Mapping[str, str]:
        """Label → identity of a set of weights: none was computed."""
        return {}

    def explain_unread(self, view: object) -> str:
        """Return "", because everything was read."""
        return ""

    def arrange(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings as they are."""
        return findings

    @property
    def headline(self) -> str:
        """An empty text: the number of rules that passed is enough."""
        return ""


class Evidence(EvidenceDefaults, Protocol):
    """The part of evidence that the runner needs; rules know the rest."""

    @property
    def target(self) -> str:
        """The target as the user wrote it."""
        ...

    @property
    def subject(self) -> str:
        """One line that describes the target."""
        ...

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read; while there is one, no rule can pass."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of files, tensors and bytes that were read."""
        ...


class HasMemory(Protocol):
    """Evidence with a memory for answers, made in its constructor."""

    @property
    def memory(self) -> dict[Hashable, Any]:
        """Function and arguments → answer."""
        ...


E = TypeVar("E", bound=HasMemory)


def remembered(compute: Callable[Concatenate[E, P], R]) -> Callable[Concatenate[E, P], R]:
    """Compute a function of evidence once for each set of arguments; the evidence keeps the answer for as long as it lives.

    It serves answers that several rules need, computed in layers above the evidence. Evidence does not change, so an answer
    depends only on the evidence and the arguments.
    """

    def answer(evidence: E, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (compute, args, tuple(sorted(kwargs.items())))
        if key not in evidence.memory:
            evidence.memory[key] = compute(evidence, *args, **kwargs)
        result: R = evidence.memory[key]
        return result

    update_wrapper(answer, compute)
    return answer
