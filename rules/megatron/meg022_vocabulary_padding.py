"""The embedding or output layer does not have as many rows as the vocabulary.

## What it checks
- The rows of the token embedding and of the output layer equal `padded_vocab_size` of the saved arguments; without that
  argument, both have the same number of rows.
- An output layer of a single row is a critic's head and is left out.

## Why it matters
Megatron accepts different row counts while it loads, because padding depends on the number of ranks. It silently cuts off or
pads a checkpoint of another vocabulary, and the last tokens get rows that were never trained.

## How to fix
Save with the vocabulary of the tokenizer, and give the converter the padded size.

## When it can be wrong
The vocabulary may have been extended after the arguments were written. `--ignore MEG022` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#5375, #625, #1853
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, OUTPUT, positive_argument
from ckptcheck.text.formatting import count


@rule("MEG022", "vocabulary-padding", severity="error", on="megatron", when=lambda run: EMBEDDING in run.weights)
def check(run: Megatron) -> Iterator[Problem]:
    expected = positive_argument(run.args, "padded_vocab_size")
    rows = {
        name: run.weights[name].shape[0]
        for name in (EMBEDDING, OUTPUT)
        if name in run.weights and run.weights[name].shape
    }
    rows = {name: number for name, number in rows.items() if name == EMBEDDING or number > 1}
    for name, number in rows.items():
        if expected is not None and number != expected:
            yield Problem(
                f"it has {count(number, 'row')}, but padded_vocab_size is {expected:,}: "
                "Megatron silently cuts it off or pads it",
                file=run.finding_file,
                key=name,
                hint="save with the vocabulary of the tokenizer",
            )
    if expected is None and len(set(rows.values())) > 1:
        yield Problem(
            f"it has {rows[OUTPUT]:,} rows, but the embedding has {rows[EMBEDDING]:,}",
            file=run.finding_file,
            key=OUTPUT,
            hint="save with the vocabulary of the tokenizer",
        )
