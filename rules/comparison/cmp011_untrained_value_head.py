"""The weights around a value head changed, but the head did not.

## What it checks
- Both sides have a value, reward or classification head of the same dtype.
- The two heads are equal bit for bit, although most other matrices differ for no known cause: training changed them.

## Why it matters
The head is the only part of a critic that starts from random numbers. A head that never changes was left out of the optimizer
or of an adapter's `modules_to_save`, or the saved copy is not the trained one. Whoever loads the checkpoint scores with
random numbers, without a warning.

## How to fix
- Check that the head is among the optimizer's parameters and has a gradient; with PEFT, name it in `modules_to_save`.
- If the head was trained but not saved, save the module that was trained.

## When it can be wrong
The head was frozen on purpose, or a backbone received another's head. Changes so small that bf16 rounds them away leave the
head as it was; but then it was not trained either. The rule is skipped where a tolerance is given.

## Seen in
huggingface/transformers#26160 (another module than the trained one was saved), huggingface/peft#577 (the head keeps its random
start), unslothai/unsloth-zoo#1087 (merging left a trained head out)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.difference_causes import diagnose_differences
from ckptcheck.compare.matching.equality import CompareSpec
from ckptcheck.compare.matching.pairing import MEGATRON_HEAD, TensorPair, is_value_head


@rule(
    "CMP011",
    "untrained-value-head",
    severity="warning",
    on="comparison",
    when=lambda comparison: any(how.first == how.second for _, how in _list_compared_value_heads(comparison)),
)
def check(comparison: Comparison) -> Iterator[Problem]:
    if comparison.tolerance.rtol or comparison.tolerance.atol:
        raise Skip("with a tolerance, a head that changed a little counts as equal")
    different = {pair.name for pair, _, _ in comparison.value_differences.different}
    unchanged = [
        pair
        for pair, how in _list_compared_value_heads(comparison)
        if how.first == how.second and pair.name not in different
    ]
    if not unchanged:
        return
    changed, matrices = _count_trained_matrices(comparison)
    if changed * 2 <= matrices:
        return
    for pair in unchanged:
        yield Problem(
            f"the head is equal in both checkpoints, bit for bit, although {changed:,} of {matrices:,} other matrices changed: "
            "it was not trained, or the trained copy was not saved",
            file=comparison.second.files.get(pair.names[1]),
            key=pair.names[1],
            hint="check that the optimizer has the head, and that the trained copy is the one that is saved",
        )


def _list_compared_value_heads(comparison: Comparison) -> list[tuple[TensorPair, CompareSpec]]:
    """Return the value heads that both sides have, and how they are compared."""
    return [
        (pair, how)
        for pair, how in comparison.comparable_pairs
        if (pair.name.endswith(".weight") and is_value_head(normalize_hf_name(pair.name)))
        or (pair.name == MEGATRON_HEAD and pair.first.shape[:1] == (1,))
    ]


def _count_trained_matrices(comparison: Comparison) -> tuple[int, int]:
    """Count the matrices, without heads, that differ for no known cause (as training changes them), and all of them."""
    heads = {pair.name for pair, _ in _list_compared_value_heads(comparison)}
    different = {pair.name for pair, _, _ in comparison.value_differences.different} - heads
    if different:
        different -= {
            name
            for verdict in diagnose_differences(comparison)
            if verdict.confidence != "unknown"
            for name in verdict.tensors
        }
    matrices = [
        pair.name
        for pair, _ in comparison.comparable_pairs
        if pair.name not in heads and isinstance(pair.first, TensorLayout) and len(pair.first.shape) >= 2
    ]
    return sum(name in different for name in matrices), len(matrices)
