"""The state of the optimizer holds values from which no training can go on.

## What it checks
The moments and master weights of the optimizer hold no NaN or Inf, its second moments (`exp_avg_sq`) nothing below zero, and
the master copy of a matrix (`optimizer.state.param`, `fp32_param`) is not all zero where the matrix itself is not. These
bytes are those that are read for the checksums (MEG015). Of each other master copy samples of some thousand numbers are read
and held against the weight: no sample differs in a quarter of its numbers by more than rounding does.

## Why it matters
The weights may be sound and evaluate well. The first step after resuming writes NaN, or the zeros of the master copy, over
every weight that such a state belongs to. Where the weights were replaced and the master copies were not, it brings back the
old ones: Megatron copies the master over the weight after each step.

## How to fix
Take an earlier iteration to resume from, or resume without the optimizer (`--no-load-optim`).

## When it can be wrong
An optimizer that calls something else `exp_avg_sq`. Weights that were replaced on purpose (merged, averaged, converted anew)
beside an optimizer that nobody will load. Buckets of the distributed optimizer (`dp_reshardable`) are not looked at, for they
are padded with memory that nothing filled: the rule is skipped then. Nor are legacy checkpoints. A few wrong numbers in a
master copy are not seen unless they are NaN or Inf. `--ignore MEG037` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.moments import BUCKET, is_state
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tensor import GlobalTensor
from ckptcheck.phrase import count, few
from ckptcheck.values.master_copies import is_another

MASTER = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(?:fp32_param|param)\.(.+)$")
HINT = "take an earlier iteration to resume from, or resume without the optimizer"


@rule(
    "MEG037",
    "optimizer-values",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.form == "torch_dist" and any("opt" in key and (is_state(key) or BUCKET.search(key)) for key in run.tensors)
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    infinite: dict[str, str] = {}
    negative: dict[str, str] = {}
    filled: dict[str, bool] = {}
    for seen in run.swept:
        if seen.state is None:
            continue
        key, file = seen.record.key, seen.record.file
        if seen.state.infinite:
            infinite.setdefault(key, file)
        elif seen.state.negative and "exp_avg_sq" in key:
            negative.setdefault(key, file)
        filled[key] = filled.get(key, False) or not seen.state.zero
    for found, what in ((infinite, "NaN or Inf"), (negative, "a second moment below zero")):
        if found:
            first = next(iter(found))
            yield Problem(
                f"{count(len(found), 'state holds', 'states hold')} {what}: {few(found)}",
                file=found[first],
                key=first,
                hint=HINT,
            )
    empty = [key for key, some in filled.items() if not some and _is_lost(run, key)]
    if empty:
        yield Problem(
            f"{count(len(empty), 'master copy is', 'master copies are')} all zero, and the weights are not: {few(empty)}",
            file=run.place,
            key=empty[0],
            hint=HINT,
        )
    others = [
        key
        for key, some in filled.items()
        if some and key not in infinite and (weight := _weight(run, key)) and is_another(run, run.tensors[key], weight)
    ]
    others += [
        key for key, some in filled.items() if not some and key not in empty and _is_lost(run, key, vectors=True)
    ]
    if others:
        yield Problem(
            f"{count(len(others), 'master copy differs from its weight', 'master copies differ from their weights')} by more "
            f"than rounding, and the first step writes the master copy over the weight: {few(others)}",
            file=run.place,
            key=others[0],
            hint=HINT,
        )
    if any(BUCKET.search(key) for key in run.tensors):
        raise Skip("the optimizer's state is in buckets, between whose weights lies memory that nothing filled")


def _weight(run: Megatron, key: str) -> GlobalTensor | None:
    """Return the weight that a master copy belongs to."""
    match = MASTER.match(key)
    return run.tensors.get(match[1]) if match else None


def _is_lost(run: Megatron, key: str, *, vectors: bool = False) -> bool:
    """Whether this is the master copy of a matrix (or of a vector as well) that is not zero."""
    weight = _weight(run, key)
    return weight is not None and (vectors or len(weight.shape) > 1) and bool(run.read(weight).any())
