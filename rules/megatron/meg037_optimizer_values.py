"""The optimizer state holds values from which training cannot continue.

## What it checks
- The moments and master weights of the optimizer hold no NaN or Inf, and its second moments (`exp_avg_sq`) no negative
  number.
- The master copy of a matrix (`optimizer.state.param`, `fp32_param`) is not all zero unless the matrix is.
- Samples of some thousand numbers of every other master copy are compared with the weight. No sample may differ in a quarter
  of its numbers by more than rounding.

ckptcheck reads these bytes for the checksums anyway (MEG014).

## Why it matters
The weights may be sound and evaluate well. The first step after resuming writes NaN, or the zeros of the master copy, over
every weight with such a state. If the weights were replaced and the master copies were not, the first step restores the old
weights: Megatron copies the master over the weight after each step.

## How to fix
Resume from an earlier iteration, or without the optimizer (`--no-load-optim`). Where the weights are zero or NaN and their master
copies are not, resume with the optimizer: its first step restores them.

## When it can be wrong
- An optimizer may use the name `exp_avg_sq` for something else.
- You may replace weights on purpose (merge, average, convert again) beside an optimizer that you will not load.
- Buckets of the distributed optimizer (`dp_reshardable`) are padded with uninitialized memory: the rule is skipped there.
  Legacy checkpoints are not checked.
- The rule does not find a few wrong numbers in a master copy, unless they are NaN or Inf.

`--ignore MEG037` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.optimizer_state import BUCKET, is_optimizer_state
from ckptcheck.checkpoint.megatron.tensor import GlobalTensor
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.master_copies import is_damaged, is_foreign_master

MASTER = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(?:fp32_param|param)\.(.+)$")
HINT = "the weights are not concerned: resume with them and --no-load-optim, or from an earlier iteration"
HINT_FOR_NAN = "if the weights are finite, resume with them and --no-load-optim; else from an earlier iteration"


@rule(
    "MEG037",
    "optimizer-values",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.form == "torch_dist"
        and any("opt" in key and (is_optimizer_state(key) or BUCKET.search(key)) for key in run.tensors)
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    infinite: dict[str, str] = {}
    negative: dict[str, str] = {}
    filled: dict[str, bool] = {}
    for record, result in run.record_stats:
        if (state := result.state) is None:
            continue
        key, file = record.key, record.file
        if state.infinite:
            infinite.setdefault(key, file)
        elif state.negative and "exp_avg_sq" in key:
            negative.setdefault(key, file)
        filled[key] = filled.get(key, False) or not state.zero
    for files, what, hint in (
        (infinite, "NaN or Inf", HINT_FOR_NAN),
        (negative, "a negative second moment", HINT),
    ):
        if files:
            first = next(iter(files))
            yield Problem(
                f"{count(len(files), 'state holds', 'states hold')} {what}: {join_truncated(files)}",
                file=files[first],
                key=first,
                hint=hint,
            )
    empty = [key for key, some in filled.items() if not some and _is_lost(run, key)]
    if empty:
        yield Problem(
            f"{count(len(empty), 'master copy is', 'master copies are')} all zero, but the weights are not: "
            f"{join_truncated(empty)}",
            file=run.finding_file,
            key=empty[0],
            hint=HINT,
        )
    others = [
        key
        for key, some in filled.items()
        if some
        and key not in infinite
        and (weight := _weight(run, key))
        and is_foreign_master(run, run.tensors[key], weight)
    ]
    others += [
        key for key, some in filled.items() if not some and key not in empty and _is_lost(run, key, vectors=True)
    ]
    damaged = [key for key in others if (weight := _weight(run, key)) is not None and is_damaged(run, weight)]
    others = [key for key in others if key not in damaged]
    if damaged:
        yield Problem(
            f"{count(len(damaged), 'weight is', 'weights are')} all zero, or NaN, and the master "
            f"{'copy is' if len(damaged) == 1 else 'copies are'} not; the first step copies the master over the weight: "
            f"{join_truncated(damaged)}",
            file=run.finding_file,
            key=damaged[0],
            hint="the optimizer is not concerned: resume with it (without --no-load-optim), or export the master copies",
        )
    if others:
        yield Problem(
            f"{count(len(others), 'master copy differs from its weight', 'master copies differ from their weights')} by more "
            f"than rounding; the first step copies the master over the weight: {join_truncated(others)}",
            file=run.finding_file,
            key=others[0],
            hint="one half is of another step or damaged: if an evaluation shows that the weights are right, resume with them and "
            "--no-load-optim; else from an earlier iteration",
        )
    if any(BUCKET.search(key) for key in run.tensors):
        raise Skip("the optimizer state is stored in buckets, which are padded with uninitialized memory")


def _weight(run: Megatron, key: str) -> GlobalTensor | None:
    """Return the weight to which a master copy belongs."""
    match = MASTER.match(key)
    return run.tensors.get(match[1]) if match else None


def _is_lost(run: Megatron, key: str, *, vectors: bool = False) -> bool:
    """Whether this is the master copy of a nonzero matrix (with `vectors`, of any nonzero weight)."""
    weight = _weight(run, key)
    return weight is not None and (vectors or len(weight.shape) > 1) and bool(run.read(weight).any())
