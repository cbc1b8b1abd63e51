"""A layer has experts where the config wants a dense feed-forward block, or the reverse.

## What it checks
Where only some layers have experts: which settings say so (`first_k_dense_replace`, `decoder_sparse_step`, `mlp_only_layers`,
`moe_layer_freq`, `mlp_layer_types`, …) was learned from transformers for each architecture. Every stored layer has the kind of
feed-forward block that they give it. Where config.json lacks a setting, the default of its class counts.

## Why it matters
transformers builds what the config says, initializes it with random numbers and leaves out what is stored, with an easily missed
warning; vLLM stops or leaves it uninitialized.

## How to fix
Copy the setting from the config of the model this one was trained or converted from.

## When it can be wrong
A model whose own code reads the setting in another way, under an architecture of transformers: use `--ignore CFG041`. Layers after
the last one of `num_hidden_layers` (multi-token prediction) are not checked.

## Seen in
No public report: configs that lost a key.
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.resolved_config import Setting
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import count

LAYER = re.compile(r"(.{0,400}?\b(?:layers|h|blocks))\.(\d+)\.(.+)\.[^.]+")


@rule(
    "CFG041",
    "layer-kind-mismatch",
    severity="error",
    when=lambda ckpt: (
        not ckpt.is_partial and (table := WeightsTable.of(ckpt.config)) is not None and table.layer_kinds is not None
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    config, table = ckpt.config, WeightsTable.of(ckpt.config)
    if config is None or config.resolved is None or table is None or table.layer_kinds is None:
        return
    kinds, resolved = table.layer_kinds, config.resolved
    depth = config.resolved.find("num_hidden_layers")
    found: dict[str, dict[int, set[bool]]] = {}
    for template, names in ckpt.layout.names_by_template.items():
        if (first := LAYER.fullmatch(names[0])) is None:
            continue
        prefix, module = first[1], first[3]
        module = INDEX.sub("{}", module)
        if module not in kinds.experts and module not in kinds.dense:
            continue
        stack = ckpt.layout.stacks.get(prefix)
        if stack is not None and template.startswith(start := f"{prefix}.{{}}."):
            rest = template.removeprefix(start)
            places = [(prefix, layer) for layer, inside in stack.layers.items() if rest in inside]
        else:  # there is another number in front of the layer's
            places = [(match[1], int(match[2])) for name in names if (match := LAYER.fullmatch(name))]
        for prefix, layer in places:
            found.setdefault(prefix, {}).setdefault(layer, set()).add(module in kinds.experts)
    for by, paths in kinds.by:
        settings = [resolved.at(path) or _fill_in_null(path) for path in paths]
        if by.has_experts(0, [setting.value for setting in settings]) is not None:
            break
    else:
        raise Skip("config.json has none of the settings that say which layers have experts")
    for layers in found.values():
        # A vision encoder has dense blocks only, and other settings.
        if not any(True in stored for stored in layers.values()):
            continue
        odd: dict[bool, list[int]] = {}
        for layer, stored in sorted(layers.items()):
            wanted = by.has_experts(layer, [setting.value for setting in settings])
            if depth is not None and type(depth.value) is int and layer >= depth.value:
                continue
            if wanted is not None and stored == {not wanted}:
                odd.setdefault(wanted, []).append(layer)
        for wanted, numbers in odd.items():
            others = f" and {count(len(numbers) - 1, 'other layer')}" if len(numbers) > 1 else ""
            dense = "a dense feed-forward block"
            present, built = (dense, "experts") if wanted else ("experts", dense)
            given = [setting for setting in settings if setting.source == "config"]
            absent = [setting for setting in settings if setting.value is None]
            yield Problem(
                f"layer {numbers[0]}{others} {'have' if others else 'has'} {present}, but "
                f"{'; '.join(describe(setting) for setting in settings)}: transformers builds {built} there, of random numbers",
                file=config.file,
                key=(given or absent or settings)[0].key_path,
                hint="copy the setting from the model's own config",
            )


def _fill_in_null(path: str) -> Setting:
    """Return what a field is that config.json lacks and whose class has no default for it but null."""
    outer, _, name = path.rpartition(".")
    return Setting(name, None, "default", f"{outer}." if outer else "")
