"""Reports with one picture of every kind, and hostile names in them."""

from __future__ import annotations

from ckptcheck.linter.pictures import (
    Curves,
    HeatCell,
    HeatMap,
    Histogram,
    Mark,
    NoPicture,
    Picture,
    Series,
    State,
    TextCell,
    TextTable,
)
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding

HOSTILE = "</script><img onerror=alert(1) src=x>\u202e"
STATES = (
    State("equal", "good"),
    State("cast", "notice"),
    State("stale", "warn"),
    State("wrong", "bad"),
    State("gone", "gone"),
)
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")


def make_heat_map(layers: int = 24, experts: int = 4) -> HeatMap:
    """Return a heat map with states, values, and a row of experts."""
    cells = {}
    for row, module in enumerate(MODULES):
        for layer in range(layers):
            state = STATES[(layer * 7 + row) % 5].name if layer % 6 == 0 else "equal"
            cells[row, layer] = HeatCell(0.1 * (layer + row + 1), state, name=f"model.layers.{layer}.{module}.weight")
    for layer in range(layers):
        members = {
            str(expert): HeatCell(
                0.5 + expert, "equal", name=f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"
            )
            for expert in range(experts)
        }
        cells[len(MODULES), layer] = HeatCell(members=members)
    cells[len(MODULES) + 1, 0] = HeatCell(3.0, "wrong", "its note", HOSTILE)
    return HeatMap(
        "Layers and modules",
        "Each cell is a tensor.",
        (*MODULES, "mlp.experts.*.up_proj", HOSTILE),
        tuple(map(str, range(layers))),
        cells,
        STATES,
        "largest magnitude",
    )


PICTURES: tuple[Picture, ...] = (
    make_heat_map(),
    Curves(
        "Norms",
        "One line a module.",
        tuple(range(24)),
        tuple(
            Series(
                module,
                tuple(1.0 + row + layer / 10 for layer in range(24)),
                keys=tuple(f"model.layers.{layer}.{module}.weight" for layer in range(24)),
            )
            for row, module in enumerate(MODULES)
        ),
        "layer",
        "norm",
        marks=(Mark(MODULES[0], 6, "outlier"),),
    ),
    Curves(
        "Ladder",
        "What is left.",
        ("as is", "in float32", "same batch"),
        (Series("KL", (0.1, None, 0.001)),),
        y_label="KL",
        scale="log",
        steps=True,
    ),
    Histogram(
        "Differences",
        "How often.",
        (0.0, 0.1, 0.2, 0.4),
        (Series("trainer", (3.0, 9.0, 1.0)), Series("engine", (1.0, 2.0, 8.0))),
    ),
    TextTable(
        "Settings",
        "Side by side.",
        ("setting", "trainer", "engine"),
        ((TextCell(HOSTILE, name=HOSTILE), TextCell("1", "equal", "job.yaml:3"), TextCell("2", "wrong")),),
        STATES,
    ),
    NoPicture("Quantization", "nothing in it is quantized"),
)

DRAWN = Report(
    f"runs/{HOSTILE}",
    "LlamaForCausalLM · 1 file",
    findings=(
        Finding("VAL001", "nan", "error", f"{HOSTILE} holds 3 NaN", "model.safetensors", HOSTILE, "write it again"),
        Finding(
            "VAL006",
            "big",
            "warning",
            "two are large",
            names=("model.layers.6.mlp.up_proj.weight", "model.layers.6.self_attn.q_proj.weight"),
        ),
        Finding("VAL003", "expert", "info", "an expert is odd", key="model.layers.3.mlp.experts.2.up_proj.weight"),
    ),
    passed=("IDX001",),
    counts={"files": 1, "tensors": 168, "bytes": 3},
    pictures=PICTURES,
)
