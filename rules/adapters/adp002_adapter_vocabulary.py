"""The adapter's embedding and head do not have the same vocabulary.

## What it checks
If an adapter holds whole embeddings or heads (trained tokens, `modules_to_save`), they have the same number of rows, which
covers every token of the tokenizer in the folder.

## Why it matters
PEFT stops with a size mismatch unless the base model is resized first, vLLM refuses the adapter, and a merge copies rows to
the wrong tokens.

## How to fix
Save embedding and head together, and resize the base model to their rows before loading.

## When it can be wrong
A model with two vocabularies, such as text and sound, may train an embedding of each, with different sizes: use `--ignore
ADP002`. The rule does not have the base model, so rows that match each other but not the base model pass. LoRA matrices on an
embedding and single trained tokens (`trainable_token_indices`) are not whole tables and do not count.

## Seen in
hiyouga/LlamaFactory#3125, unslothai/unsloth#978, huggingface/peft#2898
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import find_vocabulary_rows
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated


@rule(
    "ADP002",
    "adapter-vocabulary",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and bool(find_vocabulary_rows(ckpt.tensors)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    rows = find_vocabulary_rows(ckpt.tensors)
    first = min(rows)
    if len(set(rows.values())) > 1:
        yield Problem(
            "its vocabulary has different sizes: "
            f"{join_truncated([f'{name} has {number:,} rows' for name, number in rows.items()])}",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="save embedding and head together",
        )
        return
    tokens = ckpt.tokenizer.max_id + 1 if ckpt.tokenizer is not None else 0
    if rows[first] < tokens:
        yield Problem(
            f"it has {rows[first]:,} rows, but the tokenizer beside it has {tokens:,} tokens",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="take the tokenizer of the training run; if tokens were added, resize the model before training, and save again",
        )
