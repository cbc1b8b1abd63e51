"""A token that the model will meet has a row that was probably never trained.

## What it checks
It judges the embedding rows of the tokens that the chat template emits, and the output rows of those that end a turn or a text.
Their rows are not:

- equal to other rows, byte for byte (a row of padding or unknown tokens counts only in the output);
- within 1 % of their length of another row, or of the mean of all rows, where `resize_token_embeddings` of transformers starts
  new tokens (in numbers of 16 bits and more, and within a tenth of the rows' spread);
- in a cluster of small rows: at least four rows with a mean magnitude below 20 % of the median row's, whose sizes vary no more than
  those of rows of one random draw, with a gap of half their size to all others.

EMB001 and EMB004 report some rows already; those are left out, and so are Megatron runs.

## Why it matters
Rows are equal or alike if training never reached them: a base model under a chat template that it has not seen, or new tokens that
all started from one vector. The model reads noise at every turn, cannot tell the start of a turn from its end, or writes reserved
tokens instead. Tokens at the mean of all rows score alike, and never best. SFT and RL with LoRA and frozen embeddings do not
repair it.

## How to fix
Train with the embedding and the head unfrozen, or use a template whose tokens the base model knows.

## When it can be wrong
- Before the first step of an SFT that trains the rows, copies and means are a sound start.
- With a very small learning rate a trained row may stay within 1 % of where it started.
- A token may be a copy on purpose, as an alias.
- A cluster is likely but no proof: tokens of another modality, trained under a norm of their own, may form one.
- It misses untrained rows of tied embeddings: they are about as large as trained ones and point nearly the same way, but so do
  those of control tokens after a short SFT.

## Seen in
unslothai/unsloth#915, unslothai/unsloth#1024
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.similar_rows import (
    find_duplicate_rows,
    find_indistinct_stops,
    find_near_duplicate_rows,
)
from ckptcheck.values.detectors.token_usage import (
    find_filler_tokens,
    find_output_matrix,
    find_required_tokens,
    format_tokens,
)
from ckptcheck.values.detectors.untrained_rows import find_untrained_rows


@rule(
    "EMB005",
    "likely-untrained-token",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: ckpt.components.embedding is not None,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    untrained = {matrix.name: matrix for matrix in find_untrained_rows(ckpt)}
    for name in dict.fromkeys((ckpt.components.embedding, find_output_matrix(ckpt))):
        if name is None:
            continue
        reasons, matrix = find_required_tokens(ckpt, name), untrained.get(name)
        reported = set(matrix.rows) if matrix is not None else set()
        ignored: frozenset[int] = frozenset()
        if name == find_output_matrix(ckpt):
            reported |= find_indistinct_stops(ckpt).keys()
        else:
            ignored = find_filler_tokens(ckpt)
        descriptions: dict[int, str] = {}
        if matrix is not None:
            size = f"{len(matrix.cluster):,} small rows of one size"
            cluster_text = f"is one of {size}, like rows that were initialised and never trained"
            descriptions |= dict.fromkeys(reasons.keys() & matrix.cluster, cluster_text)
        for row, others in find_duplicate_rows(ckpt, name, reasons.keys() - reported).items():
            if partners := [other for other in others if other not in ignored]:
                descriptions[row] = f"has the same bytes as {format_tokens(ckpt, partners)}"
        for row, neighbour in find_near_duplicate_rows(
            ckpt, name, reasons.keys() - reported - descriptions.keys(), ignored
        ).items():
            distance = f"is within {100 * neighbour.distance:.2g}% of its length of"
            if neighbour.other is None:
                descriptions[row] = f"{distance} the mean of all rows, where a resized embedding starts new tokens"
            else:
                descriptions[row] = f"{distance} the row of {format_tokens(ckpt, [neighbour.other])}"
        if descriptions:
            first = min(descriptions)
            yield Problem(
                f"{count(len(descriptions), 'used token has a row', 'used tokens have rows')} that training seems "
                "not to have reached: "
                f"{format_tokens(ckpt, descriptions)}; token {first} is used because {reasons[first]}, and its row "
                f"{descriptions[first]}",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="train these rows too, or use a chat template whose tokens the model knows",
            )
