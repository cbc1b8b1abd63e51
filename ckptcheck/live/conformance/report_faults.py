"""The wording that the rules about conformance share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptcheck.live.conformance.faults import TITLES, FaultKind
from ckptcheck.live.conformance.outcome import Outcome
from ckptcheck.text.formatting import join_words

MAX_PLACES = 3
"""Places that a message names, so that it stays one line."""


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
