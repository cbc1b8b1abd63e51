"""An encoder has more or fewer layers than the config declares.

## What it checks
Where a model has several stacks of layers (an encoder beside the decoder, a tower for images or sound beside the language model):
each has as many layers as its own setting says (`encoder_layers`, `vision_config.num_hidden_layers`, `vision_config.depth`, …).
Which setting that is was learned from transformers for each architecture. Where config.json lacks it, the default of its class
counts. CFG003 and CFG004 check the layers of the language model, unless these have a setting of their own too (`decoder_layers`).

## Why it matters
transformers initializes layers that are not stored with random numbers, and omits those that are too many, with an easily
missed warning either way. The model still answers, as if it saw the image badly.

## How to fix
Correct the setting, or export the encoder again.

## When it can be wrong
A model whose own code builds another number of layers under an architecture of transformers: use `--ignore CFG043`. An encoder
that is not stored at all, or under names that transformers does not use, is not checked.

## Seen in
No public report: edits of configs at random (`make false-clean`) showed that no rule saw it.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import MOST_LAYERS
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import count, format_ranges


@rule(
    "CFG043",
    "encoder-depth",
    severity="error",
    when=lambda ckpt: (
        not ckpt.is_partial and (table := WeightsTable.of(ckpt.config)) is not None and bool(table.depths)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None:
        return
    for learned, path in table.depths.items():
        prefix = next((name for name in ckpt.layout.stacks if _simplify(name) == _simplify(learned)), None)
        setting = config.resolved.at(path)
        if prefix is None or setting is None or type(setting.value) is not int:
            continue
        stack = ckpt.layout.stacks[prefix]
        if stack is ckpt.components.stack and setting.value == ckpt.components.num_layers:
            continue
        stored, declared = count(len(stack.layers), "layer"), min(max(setting.value, 0), MOST_LAYERS)
        missing = set(range(declared)) - stack.layers.keys()
        surplus = {layer for layer in stack.layers if layer >= declared}
        if missing or surplus:
            effect = (
                f"transformers initializes the missing ones with random numbers: {format_ranges(missing)}"
                if missing
                else f"transformers omits the others: {format_ranges(surplus)}"
            )
            yield Problem(
                f"{describe(setting)}, but {prefix} has {stored}; {effect}",
                file=config.file,
                key=setting.key_path,
                hint="correct the number, or export the encoder again",
            )


def _simplify(prefix: str) -> list[str]:
    """Return a name in front of layers without the parts that releases of one architecture have or leave out."""
    return [part for part in prefix.split(".") if part not in ("model", "vision_model")]
