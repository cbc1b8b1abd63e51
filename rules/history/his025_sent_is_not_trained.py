"""What is sent is not what is trained.

## What it checks
- The watch knows the trainer's own parameters (TRL), and each tensor is sent with the values that its parameter has at that
  moment, or with these as cast to the engine's dtype.
- With LoRA, what is sent is the base with the adapter merged into it, once.
- The message says what was sent where the record can tell: the values of an earlier step, those of another parameter, the same
  values rounded or multiplied, zeros or NaN.

## Why it matters
- The engine samples from another policy than the one that is trained. The loss goes on, no update fails, and where the engine's
  logprobs are recomputed it passes for off-policy noise.

## How to fix
- An earlier step: a copy that is made before the step, or is not made again. Another parameter: the map of names in the export.
- An adapter that is not merged: merge it before the parameters are walked, and take it out only after. One that is merged twice: it
  was still merged from the sync before, or the engine is sent the adapter too.

## When it can be wrong
- A job that sends other weights on purpose, such as an average over the last steps (EMA).

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months), radixark/miles#1087 (the adapter merged into the base
that is sent beside it)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, drop_rounded
from ckptcheck.text.formatting import list_unless_single


@rule(
    "HIS025",
    "sent-is-not-trained",
    severity="error",
    on="history",
    when=lambda history: any(sync.trained is not None for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    merged = list(_find_merged(history))
    yield from merged
    found = [(index, drop_rounded(sync, sync.trained or ())) for index, sync in enumerate(history.syncs) if sync.sent]
    for indices, names in history.follow(found) if not merged else ():
        of = "tensor was sent with other values than the trainer's own parameter has"
        if len(names) > 1:
            of = "tensors were sent with other values than the trainer's own parameters have"
        yield Problem(
            f"{history.label(indices[0])}: {len(names):,} {of}{list_unless_single(names)}"
            f"{_describe_origin(history, indices, names)}{history.describe_lasting(indices)}",
            key=names[0],
            hint="export the parameters that the optimizer updates, after its step",
        )


def _find_merged(history: History) -> Iterator[Problem]:
    for run in dict.fromkeys(sync.run for sync in history.syncs):
        wrong = {
            index: sync.merged
            for index, sync in enumerate(history.syncs)
            if sync.run == run and sync.merged is not None and sync.is_merged_wrong
        }
        if wrong:
            first, factor = next(iter(wrong.items()))
            times = f"merged {factor:.2g} times"
            if round(factor, 1) in (0, 2):
                times = "merged twice" if factor > 1 else "not merged"
            yield Problem(
                f"{history.label(first)}: the adapter that is trained is {times} into what is sent"
                f"{history.describe_lasting([*wrong])}",
                hint="merge the adapter once, before the parameters are walked, and take it out after",
            )


def _describe_origin(history: History, indices: list[int], names: list[str]) -> str:
    """Say what was sent in place of the parameters; "" where the record does not have it."""
    first, last = history.syncs[indices[0]], history.syncs[indices[-1]]
    for earlier in range(indices[0] - 1, -1, -1):
        values = history.own_values[earlier]
        old = [name for name in names if values.get(name) == first.sent[name]]
        if old and history.syncs[earlier].run == first.run:
            which = "" if len(old) == len(names) else f" ({len(old):,} of them)"
            since = f"the values of {history.label(earlier)}{which}"
            if last is first:
                return f"; the export has {since}, from before the step"
            if all(last.sent.get(name, values[name]) == values[name] for name in old):
                return f"; the export keeps {since}"
            return f"; the export has {since}: it was captured before the step"
    senders = {value: name for name, value in history.own_values[indices[0]].items()}
    for name in names:
        if (other := senders.get(first.sent[name])) not in (None, name):
            return f"; {name} was sent with the values of {other}"
    for name in names:
        if text := first.altered.get(name):
            return f"; {name}: {text}"
    return ""
