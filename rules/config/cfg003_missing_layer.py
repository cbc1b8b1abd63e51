"""A layer of the model is missing.

## What it checks
The layers of the language model are numbered without a gap, and there are as many as the config declares (`num_hidden_layers`
and its synonyms, nested configs included). The layers of other stacks, of an image tower say, have no gap either, where most of
them have the same tensors.

## Why it matters
transformers and SGLang silently initialize a missing layer with random numbers; vLLM serves uninitialized memory or stops.
Pipeline-parallel exports that forget an offset or drop a remainder produce this.

## How to fix
Export or convert again; check the pipeline layout (`num_layers` divisible by the stages, virtual stages, offsets). If the
model was pruned on purpose, correct the config.

## When it can be wrong
A model whose own code runs the same layers several times, or skips some by design, may declare more layers than it stores:
use `--ignore CFG003`. The architectures of transformers that do so are known. The rule cannot find lost last layers if the
config gives no number, nor those of other stacks. CFG005 reports a layer that is partly lost.

## Seen in
sgl-project/sglang#16235, NVIDIA/Megatron-LM#1304, NVIDIA/Megatron-LM#1583, huggingface/transformers#24381,
NVIDIA-NeMo/RL#2124
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.components import MOST_LAYERS
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import count, format_ranges


@rule(
    "CFG003",
    "missing-layer",
    severity="error",
    on="layers",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.components
    numbers = anatomy.layers.keys()
    last = max(numbers)
    declared = ckpt.config.integer(*anatomy.depth_names) if ckpt.config is not None else None
    if ckpt.config is not None and declared is not None and declared > MOST_LAYERS:
        yield Problem(
            f"{ckpt.config.describe(*anatomy.depth_names)}, but {anatomy.stack.prefix} has {count(len(numbers), 'layer')}",
            file=ckpt.config.file,
            key=ckpt.config.key_path(*anatomy.depth_names),
            hint="correct the config",
        )
    elif ckpt.config is not None and anatomy.num_layers is not None and last < anatomy.num_layers:
        missing = set(range(anatomy.num_layers)) - numbers
        if missing:
            key = ckpt.config.key_path(*anatomy.depth_names)
            yield Problem(
                f"{ckpt.config.describe(*anatomy.depth_names)}, but {anatomy.stack.prefix} has "
                f"{count(len(numbers), 'layer')}; missing: {format_ranges(missing)}",
                file=ckpt.config.file,
                key=key,
                hint="export again, or correct the config if the layers were removed on purpose",
            )
    elif missing := set(range(min(min(numbers), 1), last)) - numbers:
        yield Problem(
            f"{anatomy.stack.prefix} has a gap: {count(len(numbers), 'layer')} up to number {last}; missing: "
            f"{format_ranges(missing)}",
            file=ckpt.file_of(anatomy.stack.full_name(last)),
            key=anatomy.stack.full_name(min(missing)),
            hint="export again",
        )
    for prefix, missing in ckpt.layout.gaps.items():
        if prefix != anatomy.stack.prefix:
            stack = ckpt.layout.stacks[prefix]
            yield Problem(
                f"{prefix} has a gap: {count(len(stack.layers), 'layer')} up to number {max(stack.layers)}; missing: "
                f"{format_ranges(missing)}",
                file=ckpt.file_of(stack.full_name(max(stack.layers))),
                key=stack.full_name(min(missing)),
                hint="export again",
            )
