"""The cases of rules about a critic in two frameworks: a sound comparison, and what is changed in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.live.experiments.critic import CriticComparison, MegatronRun
from tests.factories.case_table import CaseTable

VALUES = (0.5, -1.0, 0.25, 0.001, 0.75, -0.3)
WEIGHTS = ("embedding.word_embeddings.weight", "decoder.layers.0.mlp.linear_fc1.weight", "value_head.weight")


class CriticCase(CaseTable, kw_only=True):
    """A case of a rule on a critic: how Megatron's pp2 run, or transformers', differs from a sound one."""

    stored_head: bool = True
    missing: list[str] = []
    without_gradient: list[str] = []
    shape: tuple[int, ...] = (2, 4, 1)
    """Of Megatron's outputs."""
    heads: tuple[tuple[str, ...], ...] = ((), ("value_head.weight",))
    values_by: float = 0.0
    """Is added to every value of Megatron."""
    values: int = len(VALUES)
    """Number of values of Megatron."""
    nan: bool = False
    """Megatron's first value is NaN."""
    loss: float = 0.625
    """Of Megatron."""
    gradients: dict[str, tuple[float, float, float]] = {}
    """Weight → distance, largest in transformers, largest in Megatron."""


def build_critic(table: Mapping[str, Any]) -> CriticComparison:
    """Return the evidence of a case."""
    case = msgspec.convert(table, CriticCase)
    values = tuple(value + case.values_by for value in VALUES[: case.values])
    if case.nan:
        values = (float("nan"), *values[1:])
    gradients = dict.fromkeys(WEIGHTS, (1e-08, 0.1, 0.1)) | case.gradients
    run = MegatronRun("pp2", case.heads, (case.shape,), values, case.loss, gradients)
    head = ("score.weight",) if case.stored_head else ()
    return CriticComparison(
        "critic", "LlamaForTokenClassification", "transformers 5 ↔ megatron-core 0.16.1", head, tuple(case.missing), (),
        ((2, 4, 1),), (2, 4), VALUES, 0.625, tuple(case.without_gradient), (run,),
    )  # fmt: skip
