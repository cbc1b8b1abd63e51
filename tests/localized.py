"""Two sides of a prompt, made up: the other is the reference with rounding errors, and what a case does to it.

A case's `do` is a list of {point, how, …}; everything after the first such point is then wrong as well, as in a real forward.

    how = "factor" by=2.0 | "tokens" | "columns" | "shuffled" | "exchanged" with="model.layers.1.mlp.up_proj" | "bias" | "zero" |
          "nan" | "later" (all but the first token) | "noise" by=0.1 | "absent" | "shape"

With `rounding = true` what comes after such a point stays right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptcheck.localize.localization import Localization
from ckptcheck.localize.points import PARTS, order

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


def localization(table: Mapping[str, Any]) -> Localization:
    """Return the evidence of a case: `sparse`, `do`, `dtype`, `nothing` (no point in common)."""
    draw = np.random.default_rng(0)
    parts = SPARSE if table.get("sparse") else DENSE
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
        for name in sorted(names, key=order)
    }
    other = {
        name: (values * (1 + 1e-7 * draw.standard_normal(values.shape))).astype(np.float32)
        for name, values in reference.items()
    }
    wrong = False
    told = {each["point"]: each for each in table.get("do", [])}
    for name, values in list(other.items()):
        if name in told:
            _done(other, name, told[name], draw)
            wrong = wrong or not (table.get("rounding") or told[name]["how"] in ("absent", "shape"))
        elif wrong and name not in (each.get("with") for each in told.values()):
            other[name] = (values + 0.3 * draw.standard_normal(values.shape)).astype(np.float32)
    if table.get("nothing"):
        other = {f"module.{name}": values for name, values in other.items()}
    chosen = 2 if table.get("sparse") else 0
    return Localization("case", ("trainer", "engine"), reference, other, table.get("dtype", "float32"), chosen)


def _done(other: dict[str, Any], name: str, what: Mapping[str, Any], draw: np.random.Generator) -> None:
    values = other[name]
    how = what["how"]
    if how == "absent":
        del other[name]
    elif how == "exchanged":
        other[name], other[what["with"]] = other[what["with"]], values
    elif how == "shuffled":
        other[name] = values[:, draw.permutation(values.shape[1])]
    else:
        made = {
            "factor": lambda: values * what["by"],
            "tokens": lambda: values * draw.uniform(0.5, 2, (len(values), 1)),
            "columns": lambda: values * draw.uniform(0.5, 2, (1, values.shape[1])),
            "bias": lambda: values + draw.standard_normal((1, values.shape[1])),
            "zero": lambda: values * 0,
            "nan": lambda: np.where(np.arange(len(values))[:, None] > 3, np.nan, values),
            "later": lambda: np.where(np.arange(len(values))[:, None] > 0, values[::-1], values),
            "noise": lambda: values + what["by"] * draw.standard_normal(values.shape),
            "shape": lambda: values[:-1],
        }
        other[name] = made[how]().astype(np.float32)
