"""Every weight of the checkpoint, or of a stack of its layers, is zero or one number.

## What it checks
- In a checkpoint of two or more matrices, at least one holds different numbers. If none does, the rule says so in one sentence,
  also if norms or biases are not zero, and the other rules say nothing about these tensors.
- The same holds for each stack of layers (`model.layers`, a vision tower) of two layers and two kinds of matrices or more, if other
  parts of the checkpoint do hold different numbers.

It leaves out scales, and matrices that start at zero by design (`lora_B` and the like). Packed and int8 weights count too.

## Why it matters
Names, shapes, sizes and headers are right, so every loader takes it: transformers, vLLM and SGLang load it without a warning. With
zeros everywhere all logits are equal; with zeros in the layers each token passes through unchanged.

Such files come from a save of allocated tensors that no loader filled (`torch.empty`, meta tensors, FSDP before the gather,
`--load-format dummy`), from a preallocated file without its content, and from a sparse copy that lost its blocks.

## How to fix
Save again from a process that holds the weights, or fetch the file again and compare its hash with the original's. `ckptcheck diff`
with the checkpoint that it was made from shows what else was lost.

## When it can be wrong
- The file holds placeholders on purpose: weights for a test of speed, or a stub for its names.
- It holds the differences from an equal checkpoint.
- A new tower or a stack of adapters starts at zero in two kinds of matrices, to be switched on by training.
- `--ignore VAL016`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#5844 (experts left as they were allocated), vllm-project/vllm#53537 (blocks of zeros)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.blank_weights import BlankWeights, find_blank_weights


@rule("VAL016", "blank-checkpoint", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for blank in find_blank_weights(ckpt):
        first = blank.matrices[0]
        yield Problem(
            _describe(blank),
            file=first.shard if len({stats.shard for stats in blank.matrices}) == 1 else None,
            key=blank.prefix,
            hint="save again from a process that holds the weights, or fetch the files again and compare their hashes",
            names=blank.names,
        )
    ckpt.require_values()


def _describe(blank: BlankWeights) -> str:
    number = count(len(blank.matrices), "matrix", "matrices")
    numbers = {stats.absmax for stats in blank.matrices}
    if blank.is_zero:
        what = "is zero"
    elif len(numbers) == 1:
        what = f"holds the number {min(numbers):.3g} throughout"
    else:
        what = "holds one number throughout"
    if blank.prefix is not None:
        return f"every matrix of these layers {what} ({number}): nothing was written to them"
    if blank.is_zero and not blank.num_filled:
        return f"every weight is zero ({count(len(blank.names), 'tensor')}): nothing was written to the checkpoint"
    others = f"; {count(blank.num_filled, 'other tensor is', 'other tensors are')} not zero" if blank.num_filled else ""
    return f"every matrix {what} ({number}): nothing was written to them{others}"
