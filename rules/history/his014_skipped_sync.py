"""A sync is missing from a job that syncs at regular steps.

## What it checks
- Within one process, and until it restarts its count of steps, the number of steps from sync to sync is constant, such
  as 1 for a job that syncs after every step. The rule reports a pause that is a multiple of that number.
- Where the watch sees rollouts begin (TRL), each step that generates has a sync of its own, and one is enough to tell.
- Otherwise the rule needs at least four pauses, of which at most a quarter are longer than the others. Other pauses mean that the
  job has another schedule, unless every n-th sync is missing (n being 4 or more): where most of eight or more are equal, it is an
  info, since a job may sync when it can.

## Why it matters
- The engine sampled the rollouts of the steps in between from weights that are one sync older than the job's algorithm
  assumes.

## How to fix
- Look for the condition under which the job calls its sync: it counts a step twice, a rank returns early, or it catches
  an exception.

## When it can be wrong
- A job that changes how often it syncs, from that change on.

## Seen in
huggingface/trl#5312 (no sync with sleep mode), allenai/open-instruct#1627 (the first sync was tied to step 1, so that it
was missing after a resume)
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Severity
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.record import SyncRecord
from ckptcheck.text.formatting import count

PAUSES, TELLING = 4, 8
"""Least number of pauses that show a schedule, and of those that show one from which many part."""


def _list_pauses(history: History) -> list[list[tuple[int, int, int]]]:
    """Return the pauses of each count of steps: number of steps, place of the sync before, place of the sync after.

    A count ends where another process records, and where the step falls: the job began to count anew. Where it goes on above the
    step before the fall, that one sync had a wrong step (HIS005), and no pause ends or begins there. Syncs that failed belong to a
    count: they were tried. A sync without a step, and a second one of the same step, are left out.
    """
    runs: dict[str, list[tuple[int, int]]] = {}
    for index, sync in enumerate(history.syncs):
        if sync.step is not None:
            runs.setdefault(sync.run, []).append((index, sync.step))
    counts: list[list[tuple[int, int, int]]] = []
    for syncs in runs.values():
        wrong = {at for at in range(1, len(syncs) - 1) if syncs[at][1] < syncs[at - 1][1] < syncs[at + 1][1]}
        counts.append([])
        for at, ((before, step), (after, later)) in enumerate(pairwise(syncs)):
            if {at, at + 1} & wrong:
                continue
            if later < step:
                counts.append([])
            elif later > step:
                counts[-1].append((later - step, before, after))
    return [count for count in counts if len(count) >= PAUSES]


@rule(
    "HIS014",
    "skipped-sync",
    severity="warning",
    on="history",
    when=lambda history: (
        bool(history.arrived or _list_missing(history)) or (not history.damaged_lines and bool(_list_pauses(history)))
    ),
)
def check(history: History) -> Iterator[Problem]:
    yield from _find_undelivered(history)
    if _list_missing(history):
        yield from _describe_missing(history)
        return
    for pauses in _list_pauses(history):
        (usual, number), *_ = Counter(steps for steps, _, _ in pauses).most_common(1)
        longer = [pause for pause in pauses if pause[0] > usual]
        if not longer or any(steps % usual for steps, _, _ in pauses):
            continue
        severity: Severity = "warning"
        if 4 * number < 3 * len(pauses) and not _is_regular([steps for steps, _, _ in pauses], usual):
            if len(pauses) < TELLING or 2 * number <= len(pauses):
                continue
            severity = "info"
        steps, before, after = longer[0]
        often = "step" if usual == 1 else f"{usual} steps"
        yield Problem(
            f"{history.label(after)}: {count(steps // usual - 1, 'sync')} missing since {history.label(before)},"
            f" in a job that syncs after every {often}{history.describe_lasting([at for *_, at in longer])}",
            hint="look for the condition under which the job syncs",
            severity=severity,
        )


def _find_undelivered(history: History) -> Iterator[Problem]:
    """Describe syncs that an engine did not record, between two that it did."""
    engines = max(map(len, history.arrived.values()), default=0)
    places = sorted(history.arrived)
    lost = (
        {
            place: engines - len(history.arrived.get(place, ()))
            for place in range(places[0], places[-1])
            if history.syncs[place].sent and len(history.arrived.get(place, ())) < engines
        }
        if places
        else {}
    )
    for first in [*lost][:1]:
        which = "the engine" if engines == 1 else f"{lost[first]:,} of {engines:,} engines"
        yield Problem(
            f"{history.label(first)}: what was sent did not arrive at {which}{history.describe_lasting([*lost])}",
            hint="look at the transport, and whether the engine's update was called",
        )


def _list_missing(history: History) -> list[tuple[int, SyncRecord]]:
    """Return the rollouts that began without a sync, and the syncs that sent nothing, each with the place of the sync before."""
    sending = {sync.run for sync in history.syncs if sync.sent}
    empty = [(at - 1, sync) for at, sync in enumerate(history.syncs) if sync.is_empty and sync.run in sending]
    return sorted([*history.missing, *empty], key=lambda each: each[0])


def _describe_missing(history: History) -> Iterator[Problem]:
    """Describe them, one finding for each process."""
    runs: dict[str, list[tuple[int, SyncRecord]]] = {}
    for before, missing in _list_missing(history):
        runs.setdefault(missing.run, []).append((before, missing))
    for found in runs.values():
        (before, first), (_, last) = found[0], found[-1]
        since = f"; they were sampled from those of {history.label(before)}" if before >= 0 else ""
        lasting = f"; it shows at {len(found):,} steps, last at step {last.step}" if len(found) > 1 else ""
        what = (
            f"rollouts began without the weights of this step{since}"
            if first.missing
            else "one was called and sent nothing"
        )
        yield Problem(
            f"step {first.step}: a sync is missing: {what}{lasting}",
            hint="look for the condition under which the job syncs, and whether it syncs before it generates",
        )


def _is_regular(pauses: list[int], usual: int) -> bool:
    """Whether every n-th sync is missing, n being 4 or more: a job whose syncs come when they can has no such rule."""
    longer = [place for place, steps in enumerate(pauses) if steps != usual]
    periods = {after - before for before, after in pairwise(longer)}
    return len(longer) > 2 and len(periods) == 1 and min(periods) > 2
