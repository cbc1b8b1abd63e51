"""A weight or a bias has an integer dtype, but nothing says that it is quantized.

## What it checks
If neither a config nor a scale indicates quantization, no tensor called `weight` or `…_proj` is labelled as integers (I8 to
I64, U8 to U64) or BOOL. Tables of indices, counters and masks have other names.

A `bias` of one dimension beside a weight is no integer either, also where the weight is quantized: the methods that ckptcheck
knows, TorchAO, HQQ and Quanto store biases as floats. One with a `bias_scale` beside it, or for which Quark's settings have a
scheme, is left out.

## Why it matters
The bytes are right but the header is wrong: a BF16 weight labelled I16 has the right size. transformers 5.23 silently loads
it and interprets each bit pattern as an integer, so weights of 0.01 become -17,408 and 14,848. Engines also copy the integers
into their own dtype. A bias that was cast to integers is 0 or wrong by its fraction; compressed-tensors stops at the first token.

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
from ckptcheck.checkpoint.quantization.declarations import KNOWN
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.text.formatting import count, join_truncated

BESIDE = ("weight", "qweight", "weight_packed", "_weight_qdata", "W_q", "weight._data", "weight._data._data")
"""Names that a weight beside a bias may have in its module."""
INTEGERS = frozenset(("BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64))))


@rule(
    "CFG021",
    "integer-weight",
    severity="error",
    when=lambda ckpt: (
        bool(ckpt.tensors)
        and (ckpt.is_adapter or not ckpt.is_partial)
        and (not _is_quantized(ckpt) or _has_float_biases(ckpt))
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not _is_quantized(ckpt):
        yield from _check_weights(ckpt)
    if not ckpt.is_adapter:
        yield from _check_biases(ckpt)
    ckpt.require_headers()


def _check_weights(ckpt: Checkpoint) -> Iterator[Problem]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, tensor in _iter_integers(ckpt):
        if ckpt.is_adapter and not name.startswith(PREFIX):
            continue
        if tensor.shape and name.endswith(("weight", "_proj")):
            found.setdefault((ckpt.tensor_to_file[name], tensor.dtype), []).append(name)
    for (shard, dtype), names in found.items():
        # bitsandbytes packs all 4-bit numbers of a matrix in one column of bytes
        packed = dtype in ("I8", "U8") and all(ckpt.tensors[name].shape[1:] == (1,) for name in names)
        yield Problem(
            f"{count(len(names), 'weight is', 'weights are')} labelled {dtype}{', in one column' * packed}, but nothing declares a "
            "quantization: transformers and engines read the bit patterns as integers: " + join_truncated(names),
            file=shard,
            key=min(names),
            hint="these seem to be 4-bit numbers of bitsandbytes: save the model again, with their quant states and "
            "quantization_config, or dequantized"
            if packed
            else "write the header again with the dtype of the bytes",
        )


def _check_biases(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield the biases beside weights that are stored as integers."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, tensor in _iter_integers(ckpt):
        if len(tensor.shape) != 1 or not name.endswith(".bias"):
            continue
        module = name.removesuffix("bias")
        if f"{name}_scale" not in ckpt.tensors and any(f"{module}{role}" in ckpt.tensors for role in BESIDE):
            found.setdefault((ckpt.tensor_to_file[name], tensor.dtype), []).append(name)
    for (shard, dtype), names in found.items():
        yield Problem(
            f"{count(len(names), 'bias is', 'biases are')} {dtype}, and nothing declares a scale: transformers takes the integers "
            f"for the numbers, or stops at the first token: {join_truncated(names)}",
            file=shard,
            key=min(names),
            hint="copy the biases from the checkpoint that this one was made of, as floats",
        )


def _iter_integers(ckpt: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of integers, if there are any."""
    if any(dtype in INTEGERS for forms in ckpt.forms_by_template.values() for dtype, _ in forms):
        yield from ((name, tensor) for name, tensor in ckpt.tensors.items() if tensor.dtype in INTEGERS)


def _has_float_biases(ckpt: Checkpoint) -> bool:
    """Whether the declared method stores biases as floats."""
    quantization = ckpt.quantization
    if ckpt.is_adapter or quantization is None or quantization.method not in (*KNOWN, "torchao", "hqq", "quanto"):
        return False
    settings = quantization.config
    parts: list[object] = [settings.get("global_quant_config")]  # of Quark, the only one that has schemes for biases
    for key in ("layer_quant_config", "layer_type_quant_config"):
        nested = settings.get(key)
        parts += nested.values() if isinstance(nested, dict) else ()
    return not any(isinstance(part, dict) and isinstance(part.get("bias"), dict) for part in parts)


def _is_quantized(ckpt: Checkpoint) -> bool:
    """Whether anything hints at a quantization, or there is no config to do so."""
    if ckpt.is_adapter:
        return False
    config = ckpt.config
    if config is None or not config.readable or ckpt.quantization is not None:
        return True
    return any("quant" in key and part[key] for part in (config.value, config.text) for key in part)
