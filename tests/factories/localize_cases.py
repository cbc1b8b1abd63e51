"""Two sides of a prompt, made up: the other is the reference with rounding errors, and what a case does to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from ckptcheck.parity.localize.localization import Localization
from ckptcheck.parity.localize.points import PARTS, execution_order
from tests.factories.case_table import CaseTable, StrictTable

TOKENS, LAYERS = 12, 3
DENSE = [part for part in PARTS if part not in ("mlp.gate", "mlp")]
SPARSE = [part for part in PARTS if not part.startswith("mlp.") or part == "mlp.gate"]
WIDTHS = {
    "mlp.gate": 8,
    "mlp.gate_proj": 24,
    "mlp.up_proj": 24,
    "mlp.act": 24,
    "self_attn.k_proj": 8,
    "self_attn.v_proj": 8,
}


class PointChange(StrictTable, kw_only=True):
    """What is wrong with the output of a point."""

    point: str
    how: Literal[
        "factor",  # it is multiplied with `by`
        "tokens",  # each token by a factor of its own
        "columns",  # each column by a factor of its own
        "shuffled",  # its columns are in another order
        "exchanged",  # it is the output of the point `with`, and the other way round
        "bias",  # something is added to each column
        "zero",
        "nan",  # from the fourth token on
        "later",  # all but the first token are wrong
        "noise",  # random numbers are added, times `by`
        "absent",  # the other side has no such point
        "shape",  # a token is missing
    ]
    by: float = 1.0
    with_: str = msgspec.field(default="", name="with")


class LocalizationCase(CaseTable, kw_only=True):
    """A case of a rule on two sides of a prompt."""

    do: list[PointChange] = []
    """All after the first of these points is wrong as well, as in a real forward pass."""
    rounding: bool = False
    """What comes after such a point stays right."""
    sparse: bool = False
    """The model has experts."""
    dtype: str = "float32"
    nothing: bool = False
    """The two sides have no point in common."""


def build_localization(table: Mapping[str, Any]) -> Localization:
    """Return the evidence of a case."""
    case = msgspec.convert(table, LocalizationCase)
    draw = np.random.default_rng(0)
    parts = SPARSE if case.sparse else DENSE
    names = [
        "model.embed_tokens",
        *(f"model.layers.{n}.{part}" for n in range(LAYERS) for part in parts),
        "model.norm",
        "lm_head",
    ]
    reference = {
        name: draw.standard_normal((TOKENS, WIDTHS.get(name.partition("layers.")[2].partition(".")[2], 16))).astype(
            np.float32
        )
        for name in sorted(names, key=execution_order)
    }
    other = {
        name: (values * (1 + 1e-7 * draw.standard_normal(values.shape))).astype(np.float32)
        for name, values in reference.items()
    }
    wrong = False
    told = {change.point: change for change in case.do}
    for name, values in list(other.items()):
        if name in told:
            _apply_change(other, name, told[name], draw)
            wrong = wrong or not (case.rounding or told[name].how in ("absent", "shape"))
        elif wrong and name not in (change.with_ for change in told.values()):
            other[name] = (values + 0.3 * draw.standard_normal(values.shape)).astype(np.float32)
    if case.nothing:
        other = {f"module.{name}": values for name, values in other.items()}
    chosen = 2 if case.sparse else 0
    return Localization("case", ("trainer", "engine"), reference, other, case.dtype, chosen)


def _apply_change(other: dict[str, Any], name: str, what: PointChange, draw: np.random.Generator) -> None:
    values = other[name]
    how = what.how
    if how == "absent":
        del other[name]
    elif how == "exchanged":
        other[name], other[what.with_] = other[what.with_], values
    elif how == "shuffled":
        other[name] = values[:, draw.permutation(values.shape[1])]
    else:
        made = {
            "factor": lambda: values * what.by,
            "tokens": lambda: values * draw.uniform(0.5, 2, (len(values), 1)),
            "columns": lambda: values * draw.uniform(0.5, 2, (1, values.shape[1])),
            "bias": lambda: values + draw.standard_normal((1, values.shape[1])),
            "zero": lambda: values * 0,
            "nan": lambda: np.where(np.arange(len(values))[:, None] > 3, np.nan, values),
            "later": lambda: np.where(np.arange(len(values))[:, None] > 0, values[::-1], values),
            "noise": lambda: values + what.by * draw.standard_normal(values.shape),
            "shape": lambda: values[:-1],
        }
        other[name] = made[how]().astype(np.float32)
