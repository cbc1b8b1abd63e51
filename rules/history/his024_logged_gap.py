"""The gap between engine and trainer that the job logs is larger than equal weights make it.

## What it checks
The job's own metric, one number a step: `sampling/sampling_logp_difference/mean` (TRL), `rollout_corr/k3_kl` or
`training/rollout_probs_diff_mean` (verl), `token_mult_prob_error` (NeMo-RL), `train_rollout_logprob_abs_diff` (slime, miles),
`policy/rollout_train_logprobs_abs_diff_mean` (SkyRL), `mismatch_kl` (prime-rl), `behave_approx_kl` (AReaL), `vllm_kl` (OpenRLHF),
`mean_abs_log_ratio_new_old` (PipelineRL). All are read as a mean |Δ| in nats a token.
- **From the start.** Until three sound values are known, the limit is 5e-4 where both sides compute in float32, else 0.05.
- **A jump.** Then it is five times the median of the last sound values, or more where these vary more. Two of three values beyond
  the limit count, or one that is five times the limit; a gap below 1e-5 never does.
- **A drift.** Values that stay three times above those of the start, by a cumulative sum, and above half of the first limit.
- The finding names what the record shows of the cause: a prefix cache that was kept, or other sampling settings, as the adapter saw
  them; a step without a sync; or that the engine held every tensor as it was sent, so that the sync is not at fault. Where another
  rule reports that, this finding is an info. A driver such as verl's sees no sync: give its record beside those of both sides,
  `ckptcheck refit history SENDER ENGINE DRIVER`.

## Why it matters
- The engine draws tokens from another policy than the one that is trained. Ratios are clipped or corrected, and the cause stays.

## How to fix
- Another finding at the same step names the tensor or the sync that is at fault: begin there.
- Else compare how both sides compute: the prefix cache after a sync, temperature and penalties, processed or raw logprobs, dtype.
  `WatchCallback(probe=10)` or `Watch(probe=…)` separates weights from sampling; `ckptcheck parity why` goes on from there.

## When it can be wrong
- In an asynchronous job the trainer has later weights than those that drew the tokens, and the gap grows with that lag. Of
  prime-rl, AReaL and PipelineRL the first five values are left out for it.
- In bfloat16 the gap grows with training, by as much as three times the start's, and above half of the limit: that is a warning.
- A mixture of experts without router replay may be above 0.05 from the start.

## Seen in
huggingface/trl#5142 (weights that are discarded at wake-up), NovaSky-AI/SkyRL#1680 (a corrupt policy from the first sync on);
NeMo-RL's guide to GRPO names an upward drift of 1 to 2 % a fault of the weight update
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from math import exp, log
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.rollouts.curves import find_lasting
from ckptcheck.rollouts.gap_summary import FLOORS
from ckptcheck.runs.history.history import History, tensors_stored_as_sent, trainable_matrices
from ckptcheck.runs.history.logged_gap import DRAWN, LOGGED, find_logged
from ckptcheck.runs.history.record import GapRecord, SyncRecord
from ckptcheck.runs.history.sync_faults import find_fault
from ckptcheck.text.formatting import join_truncated

BEYOND = 5.0
"""How many times its floor, or its usual value, a gap may be, as in HIS016."""
LARGEST = 0.05
"""Nats: NeMo-RL's limit for equal precision is a mult_prob_error of 1.05."""
LEAST = 1e-5
"""Nats: a tenth of what float32 usually makes. A smaller gap hurts no training."""
ENOUGH, LAG = 3, 5
"""Sound values that say what is usual; and the first values of a job that fills a queue, which do not."""
WINDOW = 8
"""Sound values of which the median is usual, and after which a gap has come to an end."""
SIGMAS = 5.0
TURNS = 16
"""Syncs within which a watch looks at every tensor (ckptcheck/watch/schedule.py)."""
FEW = 4
"""Matrices that an engine may have beside what it is sent: a head that is no longer tied."""
DRIFT = 3.0
"""How many times the start's value a drift has to reach; a gap that is usual may become so large whatever the first limit was."""


@dataclass
class _Departure:
    """Values that are beyond what is usual, as places in the series."""

    kind: str
    places: list[int]
    usual: float


@dataclass(frozen=True)
class _Cause:
    """What the record shows of the cause, for the end of the message, what to do, and the rules that may name it."""

    text: str
    hint: str
    follows: tuple[str, ...] = ()


UNKNOWN = _Cause(
    "",
    "compare the prefix cache, the sampling settings and the dtypes of both sides: ckptcheck parity why separates them",
)
HELD = _Cause(
    "the engine held all that was sent, so the weights of that sync are not at fault",
    "look at how both sides compute: the prefix cache, temperature and penalties, raw logprobs, what changes the engine's weights"
    " after a sync (a wake-up), weights that the trainer does not send (a tied head)",
)


@rule("HIS024", "logged-gap", severity="error", on="history", when=lambda history: bool(history.gaps))
def check(history: History) -> Iterator[Problem]:
    series: dict[tuple[str, str], list[GapRecord]] = {}
    for run, gap in history.gaps:
        if find_logged(gap.name):
            series.setdefault((run, gap.name), []).append(gap)
    named: set[str] = set()
    for (run, name), gaps in sorted(series.items(), key=lambda item: item[0][1] == DRAWN):
        if name == DRAWN and run in named:
            continue  # a probe sees what the job has logged
        broken = [gap for gap in gaps if gap.value is None]
        if broken and not any(sync.run == run and (sync.has_nan or sync.not_finite) for sync in history.syncs):
            yield Problem(
                f"{_label(broken[0], gaps)}: {name} is no finite number",
                hint="ckptcheck scan says whether a save's weights are finite; if they are, one side overflows",
            )
        finite = [gap for gap in gaps if gap.value is not None]
        values = [LOGGED[find_logged(name)].nats(gap.value or 0.0) for gap in finite]
        limit = min(LARGEST, BEYOND * FLOORS.get(gaps[-1].dtype, LARGEST))
        for departure in _find_departures(values, limit, is_lagging=LOGGED[find_logged(name)].is_lagging):
            named.add(run)
            yield _describe(history, run, finite, values, departure, limit)


def _find_departures(values: Sequence[float], limit: float, *, is_lagging: bool) -> list[_Departure]:
    """Return where a series of gaps, in nats, is beyond its limit from the start or after a jump, or else drifts.

    limit: of the first values.
    """
    found: list[_Departure] = []
    sound: list[float] = []
    alone = -WINDOW
    """Place of the last value beyond the limit that does not count by itself."""
    for place, value in enumerate(values):
        known = sound[LAG:] if is_lagging else sound
        usual = median(known[-WINDOW:]) if len(known) >= ENOUGH else 0.0
        most = _find_limit(known[-WINDOW:], usual, limit)
        if value <= most:
            sound.append(value)
        elif found and place - found[-1].places[-1] <= WINDOW:
            found[-1].places.append(place)
        elif value > BEYOND * most or place - alone < ENOUGH:
            places = [alone, place] if place - alone < ENOUGH else [place]
            found.append(_Departure("jump" if usual else "start", places, usual))
        else:
            alone = place
    return found or _find_drift(values, LAG if is_lagging else 0, limit)


def _find_limit(sound: Sequence[float], usual: float, limit: float) -> float:
    """Return the largest sound value. usual: the median of the sound values before; 0 where they are too few."""
    if not usual:
        return limit
    logs = [log(max(value, LEAST / 10)) for value in sound]
    spread = 1.4826 * median(abs(each - median(logs)) for each in logs)
    return max(LEAST, min(usual * max(BEYOND, exp(min(SIGMAS * spread, BEYOND))), max(limit, DRIFT * usual)))


def _find_drift(values: Sequence[float], first: int, limit: float) -> list[_Departure]:
    """Return the drift of a series without a jump, as a list of one. first: the place at which its start begins."""
    begin = first + WINDOW
    start, later = values[first:begin], values[begin:]
    if len(later) < WINDOW:
        return []
    logs = [log(max(value, LEAST / 10)) for value in values]
    place = find_lasting(logs[begin:], list(islice(cycle(logs[first:begin]), len(later))), log(DRIFT) / 2)
    reached = median(later[-WINDOW:])
    if place is None or reached < DRIFT * median(start) or reached < limit / 2:
        return []
    return [_Departure("drift", list(range(begin + place, len(values))), median(start))]


def _describe(
    history: History, run: str, gaps: list[GapRecord], values: list[float], departure: _Departure, limit: float
) -> Problem:
    first, last = gaps[departure.places[0]], gaps[departure.places[-1]]
    own, nats = first.value or 0.0, values[departure.places[0]]
    shown = f"{first.name} is {own:.3g}" + (f" ({nats:.2g} nats a token)" if abs(nats - own) > 0.01 * nats else "")
    if departure.kind == "start":
        since = "" if departure.places[0] else " from the start"
        shown += f"{since}, and equal weights {_describe_dtype(first.dtype)} differ by at most {limit:g} nats a token"
    elif departure.kind == "jump":
        shown += f", {_format_ratio(values[departure.places[0]] / departure.usual)} times what it was"
    else:
        ratio = _format_ratio(values[departure.places[-1]] / departure.usual)
        shown += f" and grows to {last.value:.3g}, {ratio} times that of the start"
    if len(departure.places) > 1 and departure.kind != "drift":
        most = max(departure.places, key=values.__getitem__)
        shown += f"; it shows at {len(departure.places):,} steps, last at {_label(last, gaps)}, and reaches {gaps[most].value:.3g}"
    cause = _find_cause(history, run, first)
    is_error = max(values[place] for place in departure.places) > limit and departure.kind != "drift"
    return Problem(
        f"{_label(first, gaps)}: {shown}{'; ' if cause.text else ''}{cause.text}",
        hint=cause.hint,
        severity=None if is_error else "warning",
        follows=cause.follows,
    )


def _find_cause(history: History, run: str, gap: GapRecord) -> _Cause:
    """Return what the record shows of the cause: at the sync that gave the engine the weights of this step."""
    own = [(index, sync) for index, sync in enumerate(history.syncs) if sync.run == run and sync.ok]
    before = [each for each in own if _is_until(each[1], gap)]
    if not before:
        return UNKNOWN
    index, sync = before[-1]
    after = own[len(before) : len(before) + 1]
    if any(each.run == run and each.step == gap.step for _, each in history.missing):
        return _Cause("rollouts began without the weights of this step", UNKNOWN.hint, ("HIS014",))
    text, codes = find_fault(history, index)
    if text:
        return _Cause(text, UNKNOWN.hint, codes)
    if any(each.written for _, each in after):
        return _Cause("the engine changed after that sync", UNKNOWN.hint, ("HIS023",))
    # settings are read at a sync, and may have changed after the one that gave the weights
    suspects = next((each.suspects for _, each in [before[-1], *after] if each.suspects), ())
    if suspects:
        return _Cause("; ".join(suspects), "have both sides compute alike, and the gap goes")
    if len(own) > len(before) and _is_left_out(own, sync, gap):
        return _Cause(
            f"the record has no sync of that step, so that the engine drew with the weights of {history.label(index)}",
            "find out why the job left the sync out",
            ("HIS014",),
        )
    # where that sync looked at some tensors only, the next ones tell of the others
    for later, each in own[len(before) : len(before) + TURNS] if sync.group else ():
        text, codes = find_fault(history, later)
        if text:
            return _Cause(f"at {history.label(later)} {text}", UNKNOWN.hint, codes)
        if not each.group:
            break
    if sync.sent and not (sync.group or sync.partial or sync.unseen):
        as_sent = {key.partition("/")[2] for key in tensors_stored_as_sent(sync)}
        if as_sent >= sync.sent.keys():
            return _describe_held(history, sync)
    return UNKNOWN


def _is_left_out(own: Sequence[tuple[int, SyncRecord]], sync: SyncRecord, gap: GapRecord) -> bool:
    """Return whether a job that syncs at regular steps has left out the sync after this one, before the step of a gap."""
    steps = [each.step for _, each in own if each.step is not None]
    pauses = [after - before for before, after in pairwise(steps) if after > before]
    if not pauses or gap.step is None or sync.step is None:
        return False
    (usual, number), *_ = Counter(pauses).most_common(1)
    return 2 * number >= len(pauses) and gap.step - sync.step >= usual


def _describe_held(history: History, sync: SyncRecord) -> _Cause:
    """Return that all arrived, and what the engine has beside it, unless that is a whole part such as a vision tower."""
    changed = frozenset[str]().union(*(pair.held_changed for pair in history.pairs))
    names = [key.partition("/")[2] for key in sync.held.keys() - changed]
    others = sorted(name for name in trainable_matrices(names) if not find_source_tensors(name, sync.sent))
    if not 0 < len(others) <= FEW or len(history.pairs) < 2:
        return HELD
    which = "which is never sent, stays as it is" if len(others) == 1 else "which are never sent, stay as they are"
    return _Cause(
        f"the engine held all that was sent, and {join_truncated(others)}, {which}",
        "send it, or tie it as the trainer does, if it is trained; else compare how both sides compute, as the prefix cache",
    )


def _is_until(sync: SyncRecord, gap: GapRecord) -> bool:
    return sync.step is None or gap.step is None or sync.step <= gap.step


def _label(gap: GapRecord, gaps: Sequence[GapRecord]) -> str:
    return f"step {gap.step}" if gap.step is not None else f"value {gaps.index(gap) + 1}"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"


def _describe_dtype(dtype: str) -> str:
    return f"in {dtype}" if dtype else "in bfloat16"
