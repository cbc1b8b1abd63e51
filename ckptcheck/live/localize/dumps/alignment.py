"""Finds, for each token of one side, the same token of the other: on another rank, in another place, beside padding.

Token ids identify tokens; in a dump without ids, the output of the embedding does. ckptcheck looks for the longest run of tokens
that both sides have, then for the longest run of the rest, so that sequences may stand in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptcheck.compare.activations.points import execution_order
from ckptcheck.live.localize.dumps.rank import Replica

LONGEST = 1 << 16
"""Most tokens of a side to align: the search for runs takes quadratic time in the worst case."""
MOST_RUNS = 256
"""Most runs to match: the search for each reads all tokens again."""
SAME = 0.999
"""Least cosine of the two sides' embeddings of one token: rounding to 16 bits leaves more."""


@dataclass(frozen=True)
class Match:
    """Tokens that a rank of the reference and a rank of the other side have in common."""

    reference: int
    """Index of the reference's replica."""
    other: int
    """Index of the other side's replica."""
    rows: tuple[Any, Any] | None = None
    """The tokens' places on the two sides; None if all are in the same place."""
    has_last_token: bool = True
    """Whether the last tokens of the two replicas are the same one."""


@dataclass
class Alignment:
    """The tokens that are compared, and the ones that are not."""

    matches: list[Match] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    """Tokens that stand elsewhere, or are left out: clauses for a reader."""
    different: str | None = None
    """How the tokens of the two sides differ; None if they are the same."""


def align_replicas(reference: Sequence[Replica], other: Sequence[Replica], sides: tuple[str, str]) -> Alignment:
    """Match the tokens of the two sides. sides: their names, for messages."""
    import numpy as np

    found = Alignment()
    if not reference or not other:
        return found
    kinds = _number_tokens(reference, other)
    if kinds is None:
        found.matches = [Match(index, index) for index in range(min(len(reference), len(other)))]
        return found
    ours, theirs = kinds
    uses: Counter[int] = Counter()
    unmatched = []
    for index, tokens in enumerate(theirs):
        equal = [place for place, candidate in enumerate(ours) if np.array_equal(candidate, tokens)]
        if not equal:
            unmatched.append(index)
            continue
        place = min(equal, key=lambda place: (uses[place], place != index, place))
        uses[place] += 1
        found.matches.append(Match(place, index))
        if place != index and len(ours) == len(theirs):
            found.moves.append(
                f"{other[index].name} of {sides[1]} has the tokens of {reference[place].name} of {sides[0]}"
            )
    for place, tokens in enumerate(ours):
        equal = [index for index, candidate in enumerate(theirs) if np.array_equal(candidate, tokens)]
        if equal and not uses[place]:
            uses[place] += 1
            found.matches.append(Match(place, equal[0]))
    open_places = [place for place in range(len(ours)) if not uses[place]] or list(range(len(ours)))
    if unmatched:
        _match_runs(found, (reference, other), (ours, theirs), (open_places, unmatched), sides)
    found.matches.sort(key=lambda match: (match.other, match.reference))
    return found


def _number_tokens(reference: Sequence[Replica], other: Sequence[Replica]) -> tuple[list[Any], list[Any]] | None:
    """Number the tokens of the replicas of both sides, with equal numbers for equal tokens; None without ids and embeddings."""
    replicas = [*reference, *other]
    if all(replica.tokens is not None for replica in replicas):
        numbers = [replica.tokens for replica in replicas]
    elif (found := _number_by_values(replicas, len(reference))) is not None:
        numbers = found
    else:
        return None
    return numbers[: len(reference)], numbers[len(reference) :]


def _number_by_values(replicas: Sequence[Replica], count: int) -> list[Any] | None:
    """Number tokens by the first point that all replicas have; None if the sides have too few tokens in common.

    count: how many of the replicas are the reference's.
    """
    import numpy as np

    shared = [point for point in replicas[0].points if all(point in replica.points for replica in replicas[1:])]
    first = min(shared, key=execution_order, default=None)
    if first is None or first == "lm_head":
        return None
    matrices = [replica.points[first] for replica in replicas]
    if len({matrix.shape[1] for matrix in matrices}) != 1 or sum(map(len, matrices)) > LONGEST // 4:
        return None
    if not all(len(matrix) and np.isfinite(matrix).all() for matrix in matrices):
        return None
    normed = [
        np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)
        for matrix, norms in ((matrix, np.linalg.norm(matrix, axis=1, keepdims=True)) for matrix in matrices)
    ]
    ours = np.concatenate(normed[:count])
    first_of = (ours @ ours.T > SAME).argmax(1)
    numbers, known, total = [], 0, 0
    for index, matrix in enumerate(normed):
        likeness = matrix @ ours.T
        best = likeness.argmax(1)
        is_known = likeness[np.arange(len(matrix)), best] > SAME
        numbers.append(np.where(is_known, first_of[best], -1))
        if index >= count:
            known, total = known + int(is_known.sum()), total + len(matrix)
    return numbers if known * 2 > total else None


@dataclass(frozen=True)
class _Side:
    """The tokens of some replicas of one side, one replica after the other."""

    name: str
    numbers: Any
    owners: Any
    """Index of each token's replica."""
    rows: Any
    """The place of each token in its replica."""
    starts: Any
    """Whether a sequence is known to begin there."""
    is_divided: bool
    """Whether the dump says where sequences begin."""

    @classmethod
    def of(cls, name: str, replicas: Sequence[Replica], numbers: Sequence[Any], places: Sequence[int]) -> _Side:
        """Join the replicas at `places`, one after the other."""
        import numpy as np

        starts = []
        for place in places:
            begins = np.arange(len(numbers[place])) == 0
            known = replicas[place].starts
            starts.append(begins | known if known is not None and len(known) == len(begins) else begins)
        return cls(
            name,
            np.concatenate([numbers[place] for place in places]),
            np.concatenate([np.full(len(numbers[place]), place) for place in places]),
            np.concatenate([np.arange(len(numbers[place])) for place in places]),
            np.concatenate(starts),
            any(replicas[place].starts is not None for place in places),
        )


def _match_runs(
    found: Alignment,
    replicas: tuple[Sequence[Replica], Sequence[Replica]],
    numbers: tuple[Sequence[Any], Sequence[Any]],
    places: tuple[Sequence[int], Sequence[int]],
    names: tuple[str, str],
) -> None:
    """Match runs of tokens, longest first, among the replicas at `places`, and record moved and remaining tokens."""
    import numpy as np

    ours, theirs = (_Side.of(names[side], replicas[side], numbers[side], places[side]) for side in (0, 1))
    if max(len(ours.numbers), len(theirs.numbers)) > LONGEST:
        found.different = (
            f"the tokens differ, and {max(len(ours.numbers), len(theirs.numbers)):,} are too many to align"
        )
        return
    partner, padding = _find_runs(ours.numbers, theirs.numbers)
    back = np.full(len(ours.numbers), -1)
    back[partner[partner >= 0]] = np.flatnonzero(partner >= 0)
    left = [_list_left_runs(ours, theirs, back), _list_left_runs(theirs, ours, partner)]
    notes = [sorted({kind or "" for _, kind in runs}) for runs in left]
    if not (partner >= 0).any() or all(left) or any("" in kinds for kinds in notes):
        found.different = _describe_difference(ours, theirs, replicas, numbers, partner, back)
        return
    compared = np.flatnonzero((partner >= 0) & ~padding)
    for index in places[1]:
        for place in places[0]:
            mine = compared[(theirs.owners[compared] == index) & (ours.owners[partner[compared]] == place)]
            if len(mine):
                rows = ours.rows[partner[mine]], theirs.rows[mine]
                has_last = rows[0][-1] == len(numbers[0][place]) - 1 and rows[1][-1] == len(numbers[1][index]) - 1
                found.matches.append(Match(place, index, rows, bool(has_last)))
    for side, other, runs, kinds in zip(names, names[::-1], left, notes, strict=True):
        if runs:
            count = sum(length for length, _ in runs)
            found.moves.append(f"{side} has {_count(count)} that {other} has not ({', '.join(kinds)})")
    matches = [match for match in found.matches if match.rows is not None]
    is_moved = (np.diff(partner[compared]) < 0).any() or any(match.reference != match.other for match in matches)
    if is_moved and len(replicas[0]) == len(replicas[1]):
        # With another number of ranks, the sequences lie elsewhere anyway.
        found.moves.append(
            f"the sequences of {names[1]} stand in another order or on other ranks than those of {names[0]}"
        )


def _list_left_runs(side: _Side, other: _Side, partner: Any) -> list[tuple[int, str | None]]:
    """Return (length, kind) for each run of tokens without a partner: padding, further tokens, or None for neither.

    Padding repeats one token where a sequence begins or ends. Further tokens follow the tokens that both sides have, so
    they change nothing before them. Any other token changes what comes after it.
    """
    import numpy as np

    runs: list[tuple[int, str | None]] = []
    free = np.flatnonzero(partner < 0)
    if not len(free):
        return runs
    breaks = np.flatnonzero((np.diff(free) > 1) | (side.rows[free[1:]] == 0)) + 1
    for run in np.split(free, breaks):
        after = int(run[-1]) + 1
        is_end = after == len(side.rows) or bool(side.starts[after])
        is_begin = bool(side.starts[run[0]])
        continues = after < len(side.rows) and partner[after] >= 0
        is_begin_there = continues and bool(other.starts[partner[after]])
        is_unknown = not (side.is_divided or other.is_divided)
        kind = None
        if len(run) > 1 and len(set(side.numbers[run].tolist())) == 1:
            kind = "padding" if is_begin or is_end or is_begin_there or is_unknown else None
        elif is_end or (not is_begin and (is_begin_there or (is_unknown and len(run) > 1))):
            kind = "padding" if len(run) == 1 else "further tokens, as a response is"
        runs.append((len(run), kind))
    return runs


def _find_runs(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Return, for each of their tokens, its partner's place among ours (-1: none), and whether it is padding on both sides."""
    import numpy as np

    partner, padding = np.full(len(theirs), -1), np.zeros(len(theirs), bool)
    free_ours, free_theirs = np.ones(len(ours), bool), np.ones(len(theirs), bool)
    for _ in range(MOST_RUNS):
        length, start, there = _longest_run(ours, theirs, free_ours, free_theirs)
        if not length:
            break
        partner[there : there + length] = np.arange(start, start + length)
        padding[there : there + length] = length > 1 and len(set(theirs[there : there + length].tolist())) == 1
        free_ours[start : start + length] = False
        free_theirs[there : there + length] = False
    return partner, padding


def _longest_run(ours: Any, theirs: Any, free_ours: Any, free_theirs: Any) -> tuple[int, int, int]:
    """Return (length, our start, their start) of the longest run that is free on both sides; of equally long ones the first."""
    import numpy as np

    lengths = np.zeros(len(ours) + 1, np.int64)
    best = (0, 0, 0)
    for there in np.flatnonzero(free_theirs):
        if there and not free_theirs[there - 1]:
            lengths[:] = 0
        same = (ours == theirs[there]) & free_ours
        lengths[1:] = np.where(same, lengths[:-1] + 1, 0)
        end = int(lengths.argmax())
        if (length := int(lengths[end])) > best[0]:
            best = (length, end - length, int(there) - length + 1)
    return best


def _describe_difference(
    ours: _Side,
    theirs: _Side,
    replicas: tuple[Sequence[Replica], Sequence[Replica]],
    numbers: tuple[Sequence[Any], Sequence[Any]],
    partner: Any,
    back: Any,
) -> str:
    """Return a clause that says where the tokens of the two sides begin to differ."""
    import numpy as np

    side, other, left, which = (
        (theirs, ours, np.flatnonzero(partner < 0), 1)
        if (partner < 0).any()
        else (ours, theirs, np.flatnonzero(back < 0), 0)
    )
    first = int(left[0])
    replica = replicas[which][int(side.owners[first])]
    number = f" (id {int(side.numbers[first])})" if replica.tokens is not None else ""
    return (
        f"{len(left):,} of {_count(len(side.numbers))} of {side.name} {'has' if len(left) == 1 else 'have'} no partner on "
        f"{other.name}; the first is token "
        f"{int(side.rows[first])} of {replica.name}{number}"
    )


def _count(tokens: int) -> str:
    return f"{tokens:,} token{'s' if tokens != 1 else ''}"
