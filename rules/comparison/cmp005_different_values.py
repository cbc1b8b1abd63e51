"""Tensors hold other values than their counterparts.

## What it checks
Every element of every pair of tensors, bit for bit after the cast that is declared (CMP004): -0 is not 0, and a NaN is equal
to the same NaN only. With `--rtol` and `--atol` numbers are equal as well where |a - b| ≤ atol + rtol · |a|. For what differs
the finding says why, where one of the known causes reproduces it. A tensor of more than 134 MB is looked at in slabs: a cause is
named where every slab shows it, and else the finding says that the tensor was too large.

## Why it matters
A conversion moves numbers and does not change them; there is no reason for the smallest difference. A tolerance hides the
rest: with an absolute one of 0.1, the default of a known round-trip check, 47 % of the numbers of SmolLM2-135M could be zero,
and the whole router of a mixture of experts that was started from a normal of 0.02 (tests/benchmarks/tolerance.py).

## How to fix
The cause names the step: an interleaving that was not undone, halves exchanged, a pipeline offset.

## When it can be wrong
A step between the two that computes (merging an adapter, quantizing and back) rounds: give a tolerance, and read it in the
report.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871, modal-projects/training-gym#100, transformers#24381, charlie12345/ROCmFPX#49
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.equality import Seen
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count, natural


@rule("CMP005", "different-values", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    left = {pair.name: (pair, found) for pair, _, found in seen.findings.different}
    if not left:
        return
    for verdict in seen.reasons:
        concerned = {name: left.pop(name) for name in sorted(verdict.tensors, key=natural) if name in left}
        if not concerned:
            continue
        named = "unknown" not in verdict.causes
        yield _problem(seen, concerned, verdict.sentence if named else _unexplained(concerned), verdict.evidence)
    if left:
        yield _problem(seen, left, _unexplained(left), "")


def _unexplained(concerned: Mapping[str, object]) -> str:
    return f"{count(len(concerned), 'tensor differs', 'tensors differ')}: {together(concerned)}"


def _problem(seen: Comparison, concerned: Mapping[str, tuple[Pair, Seen]], what: str, evidence: str) -> Problem:
    total = Seen()
    for _, found in concerned.values():
        total.add(Seen(found.elements, found.different, found.largest, found.not_finite))
    first = next(iter(concerned))
    pair, found = concerned[first]
    how = []
    if total.largest:
        how.append(f"at most {total.largest:.3g} apart")
    elif signs := total.different - total.not_finite:
        how.append(f"{f'{signs:,}' if total.not_finite else 'all'} of them signs of zero")
    if total.not_finite:
        how.append(f"{total.not_finite:,} NaN or infinite on one side")
    where = f", the first at {list(found.first)}" if found.first is not None and len(concerned) == 1 else ""
    return Problem(
        f"{what}; {total.different:,} of {total.elements:,} elements, {', '.join(how)}{where}",
        file=seen.second.files.get(pair.names[1]),
        key=first,
        hint=evidence or None,
    )
