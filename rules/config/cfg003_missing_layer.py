"""A layer that the model has to have is not there.

## What it checks
The layers of the language model are numbered without a gap, and there are as many as the config declares
(`num_hidden_layers` and its synonyms, nested configs included).

## Why it matters
transformers and SGLang start a missing layer from random numbers without an error; vLLM serves uninitialised memory
or stops. Pipeline-parallel exports that forget an offset or drop a remainder produce exactly this.

## How to fix
Export or convert again; check the pipeline layout (`num_layers` divisible by the stages, virtual stages, offsets). If
the model was pruned on purpose, correct the config.

## When it can be wrong
A model that runs the same layers several times, or skips some by design, may declare more than it stores, by code of
its own; the architectures of transformers that do so are known. `--ignore CFG003` there. It is quiet where the config
gives no number and the last layers are lost, for then nothing says how many there were, and where only part of a
layer is lost (CFG005).

## Seen in
sgl-project/sglang#16235, NVIDIA/Megatron-LM#1304, NVIDIA/Megatron-LM#1583, huggingface/transformers#24381,
NVIDIA-NeMo/RL#2124
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, ranges


@rule("CFG003", "missing-layer", severity="error", when=lambda ckpt: bool(ckpt.anatomy.layers) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.anatomy
    assert anatomy.stack is not None
    numbers = anatomy.layers.keys()
    last = max(numbers)
    if anatomy.depth is not None and last < anatomy.depth:
        missing = set(range(anatomy.depth)) - numbers
        assert ckpt.config is not None
        if missing:
            key = ckpt.config.key(*anatomy.depth_names)
            yield Problem(
                f"{key.rpartition('.')[2]} is {anatomy.depth}, but {anatomy.stack.prefix} has "
                f"{count(len(numbers), 'layer')}; missing: {ranges(missing)}",
                file=ckpt.config.file,
                key=key,
                hint="export again, or correct the config if the layers were removed on purpose",
            )
    elif missing := set(range(min(min(numbers), 1), last)) - numbers:
        yield Problem(
            f"{anatomy.stack.prefix} has a gap: {count(len(numbers), 'layer')} up to number {last}; missing: {ranges(missing)}",
            file=ckpt.holder(anatomy.stack.name(last)),
            key=anatomy.stack.name(min(missing)),
            hint="export again",
        )
