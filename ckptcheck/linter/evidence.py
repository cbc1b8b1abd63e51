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


class Evidence(Protocol):
    """The part of evidence that the runner needs; rules know the rest. `EvidenceDefaults` provides the last nine members."""

    @property
    def kind(self) -> str:
        """The kind of evidence; a rule with the same `on` checks it."""
        ...

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

    @property
    def sections(self) -> tuple[Section, ...]:
        """Measurements for the reader of the report."""
        ...

    @property
    def failed_to(self) -> str:
        """The verb for what could not be done with the `unread`: ``read``, ``finish``, ``compare``."""
        ...

    def view_for(self, kind: str) -> object | None:
        """Return the evidence as rules on this kind see it; None if it has nothing for them."""
        ...

    def require(self, kind: str) -> None:
        """Raise Skip with the reason if rules on this kind cannot check, before any of them does other work."""
        ...

    @property
    def reading(self) -> Reading:
        """What was read of the target."""
        ...

    @property
    def identities(self) -> Mapping[str, str]:
        """Label → identity of a set of weights, if it was computed: ``trainer``, ``engine``, ``manifest``."""
        ...

    def explain_unread(self, view: object) -> str:
        """Return why a rule without findings has not passed: the data that it needs of this view were not read; else ""."""
        ...

    def arrange(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings, the gravest first, with causes before what follows from them."""
        ...

    @property
    def headline(self) -> str:
        """One sentence, without a full stop, on what a report without findings means; "" for none."""
        ...


class EvidenceDefaults:
    """The defaults, for evidence without measurements, that was read whole, and that has one kind of rules."""

    kind: str

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
        """Return: rules on every kind can check."""

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
