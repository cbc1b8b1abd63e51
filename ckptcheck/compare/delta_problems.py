"""Words the problem of changes that could not be applied: which tensors of which delta, and why for the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import require_packages, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count


def report_broken(chains: Sequence[DeltaChain], kinds: Sequence[str], state: str, hint: str) -> Iterator[Problem]:
    """Yield a problem for each delta with changes that are broken in one of these ways (`apply.BrokenChange`).

    state: what is wrong with the tensors, after their number: ``cannot take the change``. hint: what to do.
    Raises Skip where a package is missing without which changes could not be looked at.
    """
    for delta, found in select_outcomes(chains, lambda outcome: outcome.broken in kinds):
        first = next(iter(found))
        reason = found[first].reason
        yield Problem(
            f"{delta.name}: {count(len(found), 'tensor')} {state}: {group_names(found)}"
            + (f"; {first}: {reason}" if len(found) > 1 else f": {reason}"),
            key=first,
            names=tuple(found),
            hint=hint,
        )
    require_packages(chains)
