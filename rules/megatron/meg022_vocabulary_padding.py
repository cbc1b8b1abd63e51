"""Embedding or output layer have another number of rows than the vocabulary.

## What it checks
The rows of the token embedding, and of the output layer, are `padded_vocab_size` of the saved arguments; without that, both
have the same number. An output layer of a single row is a critic's head and left out.

## Why it matters
Megatron allows these shapes to differ while it loads, because padding depends on the number of ranks: a checkpoint of
another vocabulary is cut off or filled up without a word, and tokens at the end get rows that belong to nobody.

## How to fix
Save with the vocabulary of the tokenizer; give the converter the size that was padded to.

## When it can be wrong
A vocabulary that was extended after the arguments were written. `--ignore MEG022` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#5375, #625, #1853
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, OUTPUT, promised
from ckptcheck.phrase import count


@rule("MEG022", "vocabulary-padding", severity="error", on="megatron", when=lambda run: EMBEDDING in run.weights)
def check(run: Megatron) -> Iterator[Problem]:
    due = promised(run.args, "padded_vocab_size")
    rows = {
        name: run.weights[name].shape[0]
        for name in (EMBEDDING, OUTPUT)
        if name in run.weights and run.weights[name].shape
    }
    rows = {name: number for name, number in rows.items() if name == EMBEDDING or number > 1}
    for name, number in rows.items():
        if due is not None and number != due:
            yield Problem(
                f"it has {count(number, 'row')}, and padded_vocab_size is {due:,}: "
                "Megatron loads it silently, cut off or filled up",
                file=run.place,
                key=name,
                hint="save with the vocabulary of the tokenizer",
            )
    if due is None and len(set(rows.values())) > 1:
        yield Problem(
            f"it has {rows[OUTPUT]:,} rows, and the embedding has {rows[EMBEDDING]:,}",
            file=run.place,
            key=OUTPUT,
            hint="save with the vocabulary of the tokenizer",
        )
