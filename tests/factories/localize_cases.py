"""Two sides of a prompt, made up: the other is the reference with rounding errors, and what a case does to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from ckptcheck.compare.activations.points import PARTS, execution_order
from ckptcheck.live.localize.dumps import compare_ranks
from ckptcheck.live.localize.dumps.names import AttentionShape
from ckptcheck.live.localize.dumps.rank import RankDump
from ckptcheck.live.localize.localization import Localization
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


DUMPED = ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
"""The points of a layer of a dump."""


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


class DumpedRank(StrictTable, kw_only=True):
    """What one rank of a dump computes: the outputs of a made-up model, which depend on the tokens of a sequence up to there."""

    tokens: list[list[int]]
    """Sequences; token 0 is padding."""
    ids: bool = True
    """The dump has the ids."""
    positions: list[list[int]] = []
    """Position ids; several rows for a multimodal rotary embedding."""
    shard: tuple[int, int] = (0, 1)
    """Which of how many shares of the columns it has."""
    scale: dict[str, float] = {}
    """Point → factor of its output on this rank."""
    fused: bool = False
    """q, k and v are one projection, as engines have them."""
    summand: list[str] = []
    """Outputs of which the rank has its share only, because the engine adds them up later."""


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
    trainer: list[DumpedRank] = []
    """The ranks of the trainer's dump; with it, the case compares dumps."""
    engine: list[DumpedRank] = []
    """The ranks of the engine's dump."""


def build_localization(table: Mapping[str, Any]) -> Localization:
    """Return the evidence of a case."""
    case = msgspec.convert(table, LocalizationCase)
    if case.trainer:
        dumps = [[_dump_rank(rank, index) for index, rank in enumerate(side)] for side in (case.trainer, case.engine)]
        sides = ("trainer", "engine")
        return compare_ranks((dumps[0], dumps[1]), sides, "case", shape=AttentionShape(), dtype=case.dtype)
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


def _dump_rank(rank: DumpedRank, index: int) -> RankDump:
    """Return the dump of one rank; all ranks that have a sequence have the same of it."""
    names = ["model.embed_tokens", *(f"model.layers.{n}.{part}" for n in range(2) for part in DUMPED), "model.norm"]
    tensors: dict[str, Any] = {}
    for name in names:
        rows = []
        for sequence in rank.tokens:
            for place, token in enumerate(sequence):
                context = (
                    [token] if name == "model.embed_tokens" else [old for old in sequence[:place] if old] + [token]
                )
                rows.append(np.random.default_rng([names.index(name), *context]).standard_normal(32))
        matrix = np.array(rows, np.float32)
        which, ranks = rank.shard
        if name.endswith("_proj") and not name.endswith(("o_proj", "down_proj")):
            matrix = np.split(matrix, ranks, 1)[which]
        if name in rank.summand:
            shares = np.random.default_rng(1).standard_normal((ranks, *matrix.shape)).astype(np.float32)
            matrix = shares[which] + (matrix - shares.sum(0)) / ranks
        tensors[name] = matrix * np.float32(rank.scale.get(name, 1.0))
    if rank.fused:
        for name in [name for name in tensors if name.endswith("q_proj")]:
            tensors[name.replace("q_proj", "qkv_proj")] = tensors.pop(name)
    if rank.ids:
        tensors["model.embed_tokens:in"] = np.array([token for sequence in rank.tokens for token in sequence])[None]
    if rank.positions:
        tensors["model.rotary_emb:positions"] = np.array(rank.positions)
    return RankDump(f"rank {index}", tensors)


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
