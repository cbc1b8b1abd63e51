"""Every lora_B is zero, so the adapter changes nothing.

## What it checks
At least one LoRA pair of the adapter has numbers other than zero in both of its matrices. Single layers of zeros are VAL004's.

## Why it matters
PEFT starts lora_B at zero. With such an adapter the base model answers like the base model, in training, in vLLM and in SGLang, and
a merge of it changes no weight. An adapter that was saved before the first step, or by a rank that did not hold the trained
parameters, looks so.

## How to fix
Save the adapter after training, with its parameters gathered from all ranks.

## When it can be wrong
An adapter may be saved on purpose before it is trained: `--ignore ADP006`.

## Seen in
huggingface/peft#2322 (a merge that returned the base model's weights)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import list_lora_pairs
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.blank_weights import find_blank_tensors


@rule(
    "ADP006",
    "untrained-adapter",
    severity="warning",
    on="values",
    when=lambda ckpt: ckpt.is_adapter and bool(list_lora_pairs(ckpt.tensors)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    pairs = list_lora_pairs(ckpt.tensors)
    stats = ckpt.values.tensors
    # VAL016 reports an adapter of nothing but zeros.
    if not find_blank_tensors(ckpt) and all(
        any(name in stats and stats[name].zero for name in (pair.up, pair.down)) for pair in pairs
    ):
        yield Problem(
            f"every LoRA pair is zero ({count(len(pairs), 'module')}): the adapter changes nothing",
            file=ckpt.tensor_to_file[pairs[0].up],
            key=pairs[0].up,
            hint="save it after training, gathered from all ranks; if it was, see whether the optimizer had its parameters",
            names=tuple(pair.up for pair in pairs),
        )
    ckpt.require_values()
