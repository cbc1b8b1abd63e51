"""A weight has an integer dtype, but nothing says that it is quantized.

## What it checks
If neither a config nor a scale indicates quantization, no tensor called `weight` or `…_proj` is labelled as integers (I8 to
I64, U8 to U64) or BOOL. Tables of indices, counters and masks have other names.

## Why it matters
The bytes are right but the header is wrong: a BF16 weight labelled I16 has the right size. transformers 5.23 silently loads
it and interprets each bit pattern as an integer, so weights of 0.01 become -17,408 and 14,848. Engines also copy the integers
into their own dtype.

## How to fix
Write the header again with the dtype of the bytes; usually `config.json` names it.

## When it can be wrong
A custom quantization may store its scales elsewhere and have no setting with "quant" in its name. In a quantized model,
QNT005 compares the weights with the declaration. Files without a readable config, adapters and single shards are excluded.
`--ignore CFG021`, or a reason under `[ignore]`, silences it.

## Seen in
Headers edited by hand: transformers 5.23 loads I16 weights without a message
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated

INTEGERS = frozenset(("BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64))))


@rule(
    "CFG021",
    "integer-weight",
    severity="error",
    when=lambda ckpt: bool(ckpt.tensors) and (ckpt.is_adapter or not ckpt.is_partial) and not _is_quantized(ckpt),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, tensor in ckpt.tensors.items():
        if tensor.dtype in INTEGERS and tensor.shape and name.endswith(("weight", "_proj")):
            found.setdefault((ckpt.tensor_to_file[name], tensor.dtype), []).append(name)
    for (shard, dtype), names in found.items():
        yield Problem(
            f"{count(len(names), 'weight is', 'weights are')} labelled {dtype}, but nothing declares a quantization: transformers "
            f"and engines read the bit patterns as integers: {join_truncated(names)}",
            file=shard,
            key=min(names),
            hint="write the header again with the dtype of the bytes",
        )
    ckpt.require_headers()


def _is_quantized(ckpt: Checkpoint) -> bool:
    """Whether anything hints at a quantization, or there is no config that could."""
    if ckpt.is_adapter:
        return False
    config = ckpt.config
    if config is None or not config.readable or ckpt.quantization is not None:
        return True
    return any("quant" in key and part[key] for part in (config.value, config.text) for key in part)
