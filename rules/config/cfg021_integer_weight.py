"""A weight is labelled with a dtype of integers, and nothing says that it is quantized.

## What it checks
Where neither a config nor any scale shows a quantization, no tensor called `weight` or `…_proj` is labelled as integers (I8 to
I64, U8 to U64) or BOOL. Tables of indices, counters and masks have other names.

## Why it matters
The bytes are right and the header is not: a BF16 weight under the label I16 has the right size. transformers 5.23 loads it
without a word and takes each bit pattern for a number, so that weights of 0.01 become -17,408 and 14,848. Engines copy the
integers into their own dtype alike.

## How to fix
Write the header again with the dtype that the bytes have; most often it is the one that `config.json` names.

## When it can be wrong
A quantization of your own that keeps its scales elsewhere, and has no setting with "quant" in its name. In a quantized model
QNT005 judges the weights by what is declared. Files without a readable config, adapters, and single shards are left out.
`--ignore CFG021`, or a reason under `[ignore]`, silences it.

## Seen in
Headers edited by hand: transformers 5.23 loads I16 weights without a message
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few

INTEGERS = frozenset(("BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64))))


@rule(
    "CFG021",
    "integer-weight",
    severity="error",
    when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial and not _is_quantized(ckpt),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, tensor in ckpt.tensors.items():
        if tensor.dtype in INTEGERS and tensor.shape and name.endswith(("weight", "_proj")):
            found.setdefault((ckpt.holders[name], tensor.dtype), []).append(name)
    for (shard, dtype), names in found.items():
        yield Problem(
            f"{count(len(names), 'weight is', 'weights are')} labelled {dtype}, and nothing is quantized here: transformers "
            f"and engines take the bit patterns for numbers: {few(names)}",
            file=shard,
            key=min(names),
            hint="write the header again with the dtype that the bytes have",
        )
    ckpt.require_headers()


def _is_quantized(ckpt: Checkpoint) -> bool:
    """Whether anything hints at a quantization, or there is no config that could."""
    config = ckpt.config
    if config is None or not config.readable or ckpt.quantization is not None:
        return True
    return any("quant" in key and part[key] for part in (config.value, config.text) for key in part)
