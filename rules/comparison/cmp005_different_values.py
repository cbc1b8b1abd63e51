"""A tensor and its counterpart have different values.

## What it checks
- Every element of every pair of tensors is equal bit for bit, after a declared cast (CMP004): -0 differs from 0, and a NaN
  equals the same NaN only.
- With `--rtol` and `--atol`, numbers are also equal where |a - b| ≤ atol + rtol · |a|.
- The finding names the cause where a known cause reproduces the difference.
- A norm that was divided by scales (AWQ, SmoothQuant) is no difference where every matrix that reads it was multiplied by
  them. Where only some were, the finding names the others.
- A rotation of the embedding (QuaRot, SpinQuant) is no difference where what each matrix makes of rows of the embedding stays the
  same, with the norms folded in. The finding names the matrices of which that is not so. v and o may be rotated head by head if
  each head writes the same; other inputs and outputs where the config has a `transform_config`.
- A tensor of more than 134 MB is examined in slabs: the finding names a cause that every slab shows, or says that the tensor
  was too large.

## Why it matters
A conversion moves numbers and does not change them, so not even a small difference is right. A tolerance hides real faults:
with an absolute tolerance of 0.1, the default of a known round-trip check, 47 % of the numbers of SmolLM2-135M could be zero,
and the whole router of a mixture of experts that was initialized from a normal of 0.02.

## How to fix
The cause names the step to fix: an interleave that was not undone, swapped halves, a pipeline offset.

## When it can be wrong
A step between the two that computes (merging an adapter, quantizing and dequantizing) rounds: give a tolerance; the report
prints it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871, modal-projects/training-gym#100, transformers#24381, charlie12345/ROCmFPX#49
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.difference_causes import diagnose_differences
from ckptcheck.compare.matching.equality import CompareResult
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.text.formatting import count, natural_sort_key


@rule("CMP005", "different-values", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    for reason, names in comparison.value_differences.describe_unrotated():
        yield Problem(
            f"{reason}: {group_names(names)}",
            key=names[0],
            names=tuple(names),
            hint="rotate all matrices that read or write the residual stream, with the norms folded into those that read it; if "
            "these were rotated, they hold other values: convert them again",
        )
    unexplained = {pair.name: (pair, result) for pair, _, result in comparison.value_differences.different}
    if not unexplained:
        return
    half = {name: unexplained[name] for name in comparison.value_differences.half_smoothed if name in unexplained}
    if half:
        kept = [name for norm in half for name in comparison.value_differences.half_smoothed[norm]]
        for name in (*half, *kept):
            unexplained.pop(name, None)
        sentence = (
            f"{count(len(half), 'norm was scaled', 'norms were scaled')} ({group_names(half)}), and of the matrices that read "
            f"{count(len(half), 'it', 'them').split(' ')[-1]}, {group_names(kept)} {'does' if len(kept) == 1 else 'do'} not undo it"
        )
        yield _problem(comparison, half, sentence, "multiply the columns by the scales that the norm was divided by")
    if not unexplained:
        return
    for verdict in diagnose_differences(comparison):
        concerned = {
            name: unexplained.pop(name) for name in sorted(verdict.tensors, key=natural_sort_key) if name in unexplained
        }
        if not concerned:
            continue
        is_explained = "unknown" not in verdict.causes
        sentence = verdict.sentence if is_explained else _describe_unexplained(concerned)
        yield _problem(comparison, concerned, sentence, verdict.evidence)
    if unexplained:
        yield _problem(comparison, unexplained, _describe_unexplained(unexplained), "")


def _describe_unexplained(concerned: Mapping[str, object]) -> str:
    return f"{count(len(concerned), 'tensor differs', 'tensors differ')}: {group_names(concerned)}"


def _problem(
    comparison: Comparison, concerned: Mapping[str, tuple[TensorPair, CompareResult]], sentence: str, evidence: str
) -> Problem:
    total = CompareResult()
    for _, result in concerned.values():
        total.add(CompareResult(result.elements, result.different, result.largest, result.not_finite))
    first = next(iter(concerned))
    pair, result = concerned[first]
    details = []
    if total.largest:
        details.append(f"at most {total.largest:.3g} apart")
    elif signs := total.different - total.not_finite:
        details.append(f"{f'{signs:,}' if total.not_finite else 'all'} of them differ only in the sign of zero")
    if total.not_finite:
        details.append(f"{total.not_finite:,} NaN or infinite on one side")
    where = f", the first at {list(result.first)}" if result.first is not None and len(concerned) == 1 else ""
    return Problem(
        f"{sentence}; {total.different:,} of {total.elements:,} elements, {', '.join(details)}{where}",
        file=comparison.second.files.get(pair.names[1]),
        key=first,
        names=tuple(concerned),
        hint=evidence or None,
    )
