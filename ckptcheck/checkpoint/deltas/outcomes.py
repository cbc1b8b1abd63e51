"""Lists what became of the tensors of chains, delta by delta, as rules ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckptcheck.checkpoint.deltas.chain import DeltaChain, Outcome
from ckptcheck.checkpoint.deltas.delta import Delta
from ckptcheck.linter.rule import Skip


def are_applied(chains: Sequence[DeltaChain]) -> bool:
    """Whether a chain has a base and known formats, so that it says what became of its tensors."""
    return any(chain.can_be_applied for chain in chains)


def select_outcomes(
    chains: Sequence[DeltaChain], accepts: Callable[[Outcome], object]
) -> Iterator[tuple[Delta, dict[str, Outcome]]]:
    """Yield each delta with the tensors of it, one or more, whose outcome is accepted."""
    for chain in chains:
        for at, delta in enumerate(chain.deltas):
            found = {name: outcome for name, outcome in chain.list_outcomes(at).items() if accepts(outcome)}
            if found:
                yield delta, found


def require_packages(chains: Sequence[DeltaChain]) -> None:
    """Skip a rule that has looked at all changes there are, where some needed a package that is not installed."""
    for _, found in select_outcomes(chains, lambda outcome: outcome.broken == "package"):
        raise Skip(next(iter(found.values())).reason)
