"""A weight or a bias has an integer dtype, but nothing says that it is quantized.

## What it checks
If neither a config nor a scale indicates quantization, no tensor called `weight` or `…_proj` is labelled as integers (I8 to
I64, U8 to U64) or BOOL. Tables of indices, counters and masks have other names.

Where a config declares the format of another tool, weights of one column of bytes (`[n, 1]`) are still those of bitsandbytes.

A `bias` of one dimension beside a weight counts as a weight.

## Why it matters
The bytes are right but the header is wrong: a BF16 weight labelled I16 has the right size. transformers 5.23 silently loads
it and interprets each bit pattern as an integer, so weights of 0.01 become -17,408 and 14,848. Engines also copy the integers
into their own dtype.

## How to fix
Write the header again with the dtype of the bytes; usually `config.json` names it. A column of bytes, `[n, 1]`, is how bitsandbytes
packs 4-bit numbers: save the model again, with their quant states or dequantized.

## When it can be wrong
A custom quantization may store its scales elsewhere and have no setting with "quant" in its name. In a quantized model,
QNT005 compares the weights with the declaration. Models without a readable config and single shards are excluded, and of an
adapter what PEFT keeps beside the model (FRoD's tables of indices, named after modules).
`--ignore CFG021`, or a reason under `[ignore]`, silences it.

## Seen in
Headers edited by hand: transformers 5.23 loads I16 weights without a message
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import PREFIX
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated

INTEGERS = frozenset(("BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64))))


@rule(
    "CFG021",
    "integer-weight",
    severity="error",
    when=lambda ckpt: (
        bool(ckpt.tensors)
        and (ckpt.is_adapter or not ckpt.is_partial)
        and (not _is_quantized(ckpt) or any(_find_bytes_of_bitsandbytes(ckpt)))
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.is_adapter and _is_quantized(ckpt):
        yield from _find_bytes_of_bitsandbytes(ckpt)
        return
    found: dict[str, list[str]] = {}
    if any(dtype in INTEGERS for forms in ckpt.forms_by_template.values() for dtype, _ in forms):
        for name, tensor in ckpt.tensors.items():
            if tensor.dtype in INTEGERS and tensor.shape and _is_weight(ckpt, name):
                found.setdefault(tensor.dtype, []).append(name)
    for dtype, names in found.items():
        # bitsandbytes packs all 4-bit numbers of a matrix in one column of bytes
        packed = dtype in ("I8", "U8") and all(ckpt.tensors[name].shape[1:] == (1,) for name in names)
        yield Problem(
            f"{count(len(names), 'weight is', 'weights are')} labelled {dtype}"
            f"{', in one column, as bitsandbytes packs 4-bit numbers' * packed}, but nothing declares a quantization: transformers "
            "and engines read the bit patterns as integers: " + join_truncated(names),
            file=ckpt.tensor_to_file[min(names)],
            key=min(names),
            hint="save the model again, with their quant states and quantization_config, or dequantized"
            if packed
            else "if these are the codes of a quantization, save the model again with its scales and quantization_config; else "
            "write the header again with the dtype of the bytes",
        )
    ckpt.require_headers()


def _find_bytes_of_bitsandbytes(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield weights that are a column of bytes each, where the config declares the format of another tool."""
    quantization = ckpt.quantization
    if quantization is None or quantization.method in (None, "bitsandbytes"):
        return
    names = sorted(
        storage.name(module, "weight")
        for storage, modules in quantization.storages.items()
        if storage.is_column_of_bytes
        for module in modules
    )
    if names:
        yield Problem(
            f"{count(len(names), 'weight is', 'weights are')} one column of bytes, as bitsandbytes packs 4-bit numbers, and the "
            f"config declares {quantization.method}, which reads none of them: {join_truncated(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="save the model again, with their quant states and the quantization_config of bitsandbytes, or dequantized",
        )


def _is_weight(ckpt: Checkpoint, name: str) -> bool:
    """Whether a name is that of a weight, or of a bias beside one; of an adapter only what PEFT gives the model counts."""
    if ckpt.is_adapter and not name.startswith(PREFIX):
        return False
    is_bias = len(ckpt.tensors[name].shape) == 1 and name.endswith(".bias")
    return name.endswith(("weight", "_proj")) or (is_bias and f"{name.removesuffix('bias')}weight" in ckpt.tensors)


def _is_quantized(ckpt: Checkpoint) -> bool:
    """Whether anything hints at a quantization, or there is no config to do so."""
    if ckpt.is_adapter:
        return False
    config = ckpt.config
    if config is None or not config.readable or ckpt.quantization is not None:
        return True
    return any("quant" in key and part[key] for part in (config.value, config.text) for key in part)
