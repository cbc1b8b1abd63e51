"""A tensor stops moving or never moves from save to save, while others go on.

## What it checks
- A matrix of the model, or of the optimizer's state, that was different in every save so far is the same as in the save before,
  while others moved. Two intervals in which it moved are needed to say so.
- So many elements changed in the other matrices that a thousand of them would have in this one: after a small step, or at the end
  of a schedule, weights in 16 bits round to what they were, and a matrix may rest by itself.
- A run that trains its layers in turns is left out: one in which other matrices rested before and moved again.
- Experts are left out until they rest for two intervals: a few steps may send one of them no token.
- Over two intervals or more, a matrix that never moved, while all others of its kind that belong to a layer which trains moved in
  each. Whole layers and a whole part (`visual`, `mtp`) that never moved are information: they are mostly frozen on purpose. A
  kind that rests in all layers says nothing.

## Why it matters
- A part of the save is older than the rest: one rank, one pipeline stage or one group of parameters did not reach the file. Or the
  trainer lost these parameters from its optimizer, and does not train them any more. Where their moments moved in the same
  interval, the trainer did update them, and the save holds old values: then it is an error.

## How to fix
- Look what the tensors have in common: a stage, a rank, a file. Compare the save with the live trainer (`--history`).

## When it can be wrong
- Layers were frozen on purpose in the middle of a run, or some matrices of a layer from its start: `--ignore SER003`.

## Seen in
NVIDIA-NeMo/RL#4183, NVIDIA/Megatron-LM#4378; NVIDIA/Model-Optimizer#2427 (MTP layers that no step reaches)
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.name_groups import group_names, name_template
from ckptcheck.linter.rule import Severity
from ckptcheck.runs.saves.save import TensorRecord
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.strand import Interval, Strand, is_large_matrix
from ckptcheck.text.formatting import count

LAYER = re.compile(r".*?\.\d+(?=\.)")
FIRST_MOMENT = re.compile(r"(^|[._])(exp_avg|momentum_buffer)([._]|$)")
MOST_BEFORE = 50
"""Intervals before the last that are looked at."""
LEAST_EXPECTED = 1000
"""Elements of a matrix that would have changed, if as large a share of it had as in the matrices that moved."""


@rule(
    "SER003",
    "frozen-tensor",
    severity="warning",
    on="saves",
    when=lambda series: any(len(strand.intervals) > 1 for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        yield from _list_resting(strand)
        before: list[Interval] = []
        for now in strand.intervals:
            if not now.moved:
                continue  # SER001 says it
            before = [*before[-MOST_BEFORE:], now]
            if len(before) < 3:
                continue
            weights = _find_frozen(
                now.after.weights, [one.moved for one in before[:-1]], [one.still for one in before[:-1]], now.still
            )
            weights = [
                name for name in weights if now.after.weights[name].elements * now.changed_share >= LEAST_EXPECTED
            ]
            states = _find_frozen(
                now.after.states,
                [one.moved_states for one in before[:-1]],
                [one.still_states for one in before[:-1]],
                now.still_states if now.moved_states else frozenset(),
            )
            if weights or states:
                before.pop()  # what is old in this save says nothing of how the run trains
            if weights:
                has_moved = _have_moments_moved(now, weights)
                besides = ", although their moments moved" if has_moved else ""
                yield Problem(
                    f"{now.after.name}: {count(len(weights), 'tensor')} that moved in every interval before"
                    f" {'is' if len(weights) == 1 else 'are'} as in {now.before.name}, while {len(now.moved):,} moved{besides}:"
                    f" {group_names(weights)}",
                    file=now.after.name,
                    key=weights[0],
                    severity="error" if has_moved else None,
                    hint="look for what they have in common: a rank, a stage, a file; compare the save with the live trainer",
                )
            if states:
                yield Problem(
                    f"{now.after.name}: {count(len(states), 'tensor')} of the optimizer that moved in every interval before"
                    f" {'is' if len(states) == 1 else 'are'} as in {now.before.name}, while {len(now.moved_states):,} moved:"
                    f" {group_names(states)}",
                    file=now.after.name,
                    key=states[0],
                    hint="look for what they have in common: a rank, a stage, a file",
                )


def _list_resting(strand: Strand) -> Iterator[Problem]:
    """Describe the weights that never moved: single ones of their kind, and layers and parts that are mostly frozen on purpose."""
    intervals = [interval for interval in strand.intervals if interval.moved]
    if len(intervals) < 2:
        return
    last = intervals[-1]
    share = max(interval.changed_share for interval in intervals)
    always = frozenset.intersection(*(interval.moved for interval in intervals))
    still = frozenset.intersection(*(interval.still for interval in intervals))
    records = last.after.weights
    matrices = {name for name, record in records.items() if is_large_matrix(record) and "experts." not in name}
    resting = {
        name for name in still & matrices if not records[name].zero and records[name].elements * share >= LEAST_EXPECTED
    }
    kinds = Counter(name_template(name) for name in always)
    others = Counter(name_template(name) for name in records.keys() - always - still)
    in_training = {_find_layer(name) for name in always & matrices}
    odd = {name for name in resting if kinds[name_template(name)] and not others[name_template(name)]}
    single = {name for name in odd if _find_layer(name) in in_training}
    parts = {part for name in resting - odd if (part := _find_part(name, matrices - resting))}
    whole = {name for name in resting if any(name.startswith(f"{part}.") for part in parts)}
    found: tuple[tuple[Iterable[str], Severity, str], ...] = (
        (single, "warning", "while all others of their kind did"),
        (odd - single, "info", "while other layers did"),
        (whole if len(whole) > 1 else (), "info", "and nothing else of their part did"),
    )
    for each, severity, besides in found:
        names = sorted(each)
        if not names:
            continue
        has_moved = _have_moments_moved(last, names)
        yield Problem(
            f"{count(len(names), 'tensor')} never moved in {count(len(intervals) + 1, 'save')}, {besides}"
            f"{', and although their moments moved' if has_moved else ''}: {group_names(names)}",
            file=last.after.name,
            key=names[0],
            severity="error" if has_moved else severity,
            hint="the optimizer updates them, and the saves hold old values: look for a rank or a file that these share, and for"
            " masters that are not copied into the model"
            if has_moved
            else "look for them among the optimizer's parameters, unless they are frozen on purpose",
        )


def _find_layer(name: str) -> str:
    """Return the name of a tensor's layer, which ends with its first number; its first part where it is in none."""
    match = LAYER.match(name)
    return match[0] if match is not None else name.partition(".")[0]


def _find_part(name: str, moving: Iterable[str]) -> str:
    """Return the largest part of the model around a tensor in which no matrix moves; "" if that is a layer, or less."""
    modules = name.split(".")[:-1]
    for end in range(1, len(modules)):
        part = ".".join(modules[:end])
        if modules[end - 1].isdecimal():
            return ""
        if not any(other.startswith(f"{part}.") for other in moving):
            return part
    return ""


def _have_moments_moved(interval: Interval, weights: list[str]) -> bool:
    """Whether the optimizer is known to have updated these weights: each has a first moment that moved.

    Optimizers that number their parameters do not say which moment is whose; then all of them count, if there are enough.
    """
    moved = [name for name in interval.moved_states if FIRST_MOMENT.search(name)]
    still = [name for name in interval.still_states if FIRST_MOMENT.search(name)]
    named = [name for name in moved if any(weight in name for weight in weights)]
    return len(named) >= len(weights) or (not still and len(moved) >= len(interval.after.weights))


def _find_frozen(
    records: Mapping[str, TensorRecord],
    moved: list[frozenset[str]],
    rested: list[frozenset[str]],
    still: frozenset[str],
) -> list[str]:
    """Return the matrices that stopped in the last interval; experts, where they rested in the one before it already.

    None where others rested in some intervals before and moved in others: such a run trains its layers in turns.
    """
    if any(
        is_large_matrix(record) and "experts." not in name and any(name in one for one in moved)
        for name, record in records.items()
        if any(name in one for one in rested)
    ):
        return []
    frozen = []
    for name in sorted(still):
        if not is_large_matrix(records[name]) or records[name].zero:
            continue
        is_expert = "experts." in name
        if (is_expert and len(moved) > 2 and name in rested[-1] and all(name in one for one in moved[:-1])) or (
            not is_expert and all(name in one for one in moved)
        ):
            frozen.append(name)
    return frozen
