"""The reward or value head is a copy of the first row of the vocabulary.

## What it checks
A head of one row is not the first row of the checkpoint's own embedding or LM head, byte for byte.

## Why it matters
A critic whose head is stored in the place of the LM head loads from a language model without an error and gets its row 0: the
first values are the logits of token 0. No loader warns, because no tensor is missing.

## How to fix
Give the head a name of its own, and initialize it with zeros or small random numbers.

## When it can be wrong
It cannot happen by chance: the bytes of a whole row are equal, and rows of zeros are excluded. A head may be initialized from
row 0 on purpose. If embedding and head have different dtypes, the row is not compared; `ckptcheck diff --critic` rounds it
(CMP008).

## Seen in
alibaba/ROLL's Megatron critic: a head kept in `output_layer` becomes row 0 of the LM head without an error
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes


@rule(
    "HEAD006",
    "head-from-vocabulary",
    severity="error",
    when=lambda ckpt: any(ckpt.tensors[name].shape[:1] == (1,) for name in ckpt.components.score_head_tensors),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("heads are not compared on the Hub")
    for name in ckpt.components.score_head_tensors:
        head = ckpt.tensors[name]
        if len(head.shape) != 2 or head.shape[0] != 1 or not head.nbytes:
            continue
        tables = [
            other
            for other in (ckpt.components.lm_head, ckpt.components.embedding)
            if other is not None and other != name
        ]
        for other in tables:
            table = ckpt.tensors.get(other)
            if table is None or table.dtype != head.dtype or len(table.shape) != 2 or table.shape[1] != head.shape[1]:
                continue
            own = read_tensor_bytes(ckpt, name, 0, head.nbytes)
            if any(own) and own == read_tensor_bytes(ckpt, other, 0, head.nbytes):
                yield Problem(
                    f"it is row 0 of {other}, byte for byte: a language model was loaded into the place of the head",
                    file=ckpt.tensor_to_file[name],
                    key=name,
                    hint="give the head a name of its own, and initialize it again",
                )
                break
