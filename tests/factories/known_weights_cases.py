"""Two sets of weights that are known by their digests, for the cases of rules about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.compare.identity import TensorIdentity
from ckptcheck.compare.known_weights import KnownComparison, KnownWeights, compare_known_weights
from tests.factories.case_table import CaseTable


class KnownCase(CaseTable, kw_only=True):
    """A case: name → a digit that stands for the digest, and the dtype where it is not BF16."""

    first: dict[str, str]
    second: dict[str, str]


def build_known_comparison(table: Mapping[str, Any]) -> KnownComparison:
    """Return the evidence of a case."""
    case = msgspec.convert(table, KnownCase)
    sides = [
        KnownWeights(target, {name: _build(text) for name, text in side.items()}, "Hugging Face", "an identity file")
        for target, side in (("A", case.first), ("B", case.second))
    ]
    return compare_known_weights(*sides)


def _build(text: str) -> TensorIdentity:
    digit, _, dtype = text.partition(" ")
    return TensorIdentity(dtype or "BF16", (4, 8), digit * 32)
