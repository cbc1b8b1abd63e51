"""A token that the model will meet has a row that was probably never trained.

## What it checks
The tokens that the chat template emits, in the embedding; those that end a turn or a text, in the matrix that scores the next
token. Their rows are not:

- the very bytes of other rows (of padding and unknown tokens only in the scores);
- within 1 % of their length of another row, or of the mean of all rows, which is where `resize_token_embeddings` of transformers
  starts new tokens (in numbers of 16 bits and more, and within a tenth of the rows' spread);
- among a cluster: at least four rows whose mean magnitude is below 20 % of the median row's, which vary no more than rows of one
  random draw do, with a gap of half their size to all others.

Rows that EMB001 and EMB004 name are left out. Not looked for in a Megatron run.

## Why it matters
Rows are equal or alike when training never reached them: a base model under a chat template that it has not seen, or new
tokens that were all started from one vector. The model reads noise at every turn, cannot tell the start of a turn from its
end, or writes reserved tokens instead; tokens at the mean of all score alike, and never best. With LoRA, and embeddings frozen,
SFT and RL do not mend it.

## How to fix
Train with the embedding and the head unfrozen, or use a template whose tokens the base model knows.

## When it can be wrong
Before the first step of an SFT that trains the rows, copies and means are a fair start. A learning rate so small that rows
move by less than 1 % leaves them near it, trained or not. A token may be a copy on purpose, as an alias.
A cluster is a likelihood and no proof: tokens of another modality, trained under a norm of their own, may look so. Rows of
tied embeddings that were never trained are about as large as trained ones and point nearly the same way, but so do those of
control tokens after a short SFT, so neither is held against a row.

## Seen in
unslothai/unsloth#915, unslothai/unsloth#1024
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.copies import copies, indistinct_stops
from ckptcheck.values.neighbours import near
from ckptcheck.values.untrained import untrained
from ckptcheck.values.uses import idle, listed, needed, writes_with


@rule(
    "EMB005",
    "likely-untrained-token",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and ckpt.anatomy.embedding is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    judged = {matrix.name: matrix for matrix in untrained(ckpt)}
    for name in dict.fromkeys((ckpt.anatomy.embedding, writes_with(ckpt))):
        if name is None:
            continue
        reasons, matrix = needed(ckpt, name), judged.get(name)
        said = set(matrix.rows) if matrix is not None else set()
        ignored: frozenset[int] = frozenset()
        if name == writes_with(ckpt):
            said |= indistinct_stops(ckpt).keys()
        else:
            ignored = idle(ckpt)
        how: dict[int, str] = {}
        if matrix is not None:
            alike = f"is one of {len(matrix.cluster):,} small rows that are as alike as rows of one random draw"
            how |= dict.fromkeys(reasons.keys() & matrix.cluster, alike)
        for row, others in copies(ckpt, name, reasons.keys() - said).items():
            if partners := [other for other in others if other not in ignored]:
                how[row] = f"has the same bytes as {listed(ckpt, partners)}"
        for row, close in near(ckpt, name, reasons.keys() - said - how.keys(), ignored).items():
            if close.other is None:
                how[row] = (
                    f"is the mean of all rows but for {100 * close.distance:.2g}% of its length, as new tokens start"
                )
            else:
                how[row] = (
                    f"is the row of {listed(ckpt, [close.other])} but for {100 * close.distance:.2g}% of its length"
                )
        if how:
            first = min(how)
            yield Problem(
                f"{count(len(how), 'used token has a row', 'used tokens have rows')} that training seems not to have reached: "
                f"{listed(ckpt, how)}; token {first} {how[first]}, and {reasons[first]}",
                file=ckpt.holders[name],
                key=name,
                hint="train these rows too, or use a chat template whose tokens the model knows",
            )
