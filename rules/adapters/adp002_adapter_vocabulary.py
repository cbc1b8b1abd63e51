"""The adapter's embedding and head do not belong to one vocabulary.

## What it checks
Where an adapter carries whole embeddings or heads (trained tokens, `modules_to_save`), they have one number of rows,
and one that covers every token of the tokenizer beside them.

## Why it matters
PEFT stops with a size mismatch unless the base model is resized first, vLLM refuses the adapter, and a merge copies
rows to the wrong tokens.

## How to fix
Save embedding and head together, and resize the base model to their rows before loading.

## When it can be wrong
A model with two vocabularies, such as text and sound, may train one embedding of each, and then the two have no one
size: `--ignore ADP002`. The base model is not at hand, so rows that agree with each other and not with it pass. LoRA
matrices on an embedding and single trained tokens (`trainable_token_indices`) are not whole tables and are not
counted.

## Seen in
hiyouga/LlamaFactory#3125, unslothai/unsloth#978, huggingface/peft#2898
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import vocabulary_rows
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import few


@rule(
    "ADP002",
    "adapter-vocabulary",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and bool(vocabulary_rows(ckpt.tensors)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    rows = vocabulary_rows(ckpt.tensors)
    first = min(rows)
    if len(set(rows.values())) > 1:
        yield Problem(
            f"its vocabulary has no one size: {few([f'{name} has {number:,} rows' for name, number in rows.items()])}",
            file=ckpt.holders[first],
            key=first,
            hint="save embedding and head together",
        )
        return
    tokens = ckpt.tokenizer.max_id + 1 if ckpt.tokenizer is not None else 0
    if rows[first] < tokens:
        yield Problem(
            f"it has {rows[first]:,} rows, but the tokenizer beside it has {tokens:,} tokens",
            file=ckpt.holders[first],
            key=first,
            hint="resize the model to the tokenizer before training, and save again",
        )
