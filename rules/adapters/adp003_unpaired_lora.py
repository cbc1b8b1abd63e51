"""Half of a LoRA pair is missing.

## What it checks
Every `lora_A` has its `lora_B` and the reverse, for linear layers and embeddings. An adapter of LoRA has at least one pair.

## Why it matters
PEFT initializes the missing half: without B the update is zero, without A it is random. vLLM stops with an assertion. An adapter
file without a tensor (40 bytes) is what a rank of ZeRO-3 leaves that gathered nothing: PEFT answers like the base model.

## How to fix
Save the adapter again, gathering all ranks.

## When it can be wrong
A custom trainer that shares one A between several modules, or keeps A fixed and stores only B, writes halves on purpose.
PEFT, vLLM and SGLang cannot load those, so use `--ignore ADP003` only if your own code does. The rule cannot find a lost
pair: compare with `target_modules`, or write a manifest when you save the adapter.

## Seen in
deepspeedai/DeepSpeed#7900, huggingface/peft#2892 and huggingface/trl#4416 (an adapter file without a tensor)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated

HALF = re.compile(r"lora_(embedding_)?([AB])(?=\.|$)")


@rule("ADP003", "unpaired-lora", severity="error", when=lambda ckpt: ckpt.is_adapter)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if ckpt.shards and not ckpt.tensors:
        yield Problem(
            "the adapter has no tensor, so PEFT answers like the base model",
            file=next(iter(ckpt.shards)),
            hint="gather the parameters before saving, as ZeRO-3 and FSDP need it",
        )
    lost: dict[str, list[str]] = {}
    for name in ckpt.tensors:
        if (match := HALF.search(name)) and not name.endswith(".bias"):  # with lora_bias only lora_B has one
            other = "B" if match[2] == "A" else "A"
            if name[: match.start(2)] + other + name[match.end(2) :] not in ckpt.tensors:
                lost.setdefault(other, []).append(name)
    for half, names in sorted(lost.items()):
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} no matching lora_{half}: {join_truncated(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="save the adapter again; without both halves there is no update",
        )
