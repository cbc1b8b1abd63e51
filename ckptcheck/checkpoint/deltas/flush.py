"""Reads verl's delta flushes, each as a safetensors file of the named tensors that its receiver yields.

A sync is one flush or several: `__delta_spec__` (JSON as U8: encoding, params, checksum), `__positions__` (U8: signed integers of
32 bits, one after the other) and `__values__` in the model's dtype. A param has name, dtype, shape, the bytes of its positions
(pos_start, pos_end) and the elements of its values (val_start, val_end). The first sync has the encoding ``dense``, which has no
positions; with ``verify`` it changes nothing. Source: verl-project/verl verl/checkpoint_engine/delta_sync/encode.py,
delta_checkpoint_engine.py and verl/workers/rollout/sglang_rollout/delta_loader.py (1dda039b). verl sends flushes and stores none:
``save_file(dict(named_tensors), path)`` in a loop over `receive_weights` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

from ckptcheck.checkpoint.deltas.delta import MALFORMED, UNKNOWN, Change, Delta, Flush, Span, adopt_defects
from ckptcheck.checkpoint.deltas.target import SPEC
from ckptcheck.checkpoint.document import Defect, clip, parse_object
from ckptcheck.checkpoint.header import Shard, read_shard
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.tensor import BITS, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POSITIONS, VALUES = "__positions__", "__values__"
MAX_SPEC = 1 << 27
"""Longest spec that is read, in bytes; one of 100,000 params has about 20 MB."""
MAX_SIZE = 1 << 62
"""Above any offset of a file, which has 63 bits."""
MAX_CHECKSUM = 1 << 66
"""verl's is an exclusive or of a number of 64 bits with one that was shifted by one."""
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "uint8": "U8", "int8": "I8"} | {
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int16": "I16", "int32": "I32", "int64": "I64"
}  # fmt: skip
"""torch's name of a dtype → safetensors'."""
STEP = 1 << 22
"""Bytes that are widened at a time."""
KINDS = {
    "U8": "<u1",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": "<u2",
}


def is_flush(shard: Shard) -> bool:
    """Whether a safetensors file holds a flush."""
    return SPEC in shard.tensors and VALUES in shard.tensors


def read_flushes(source: Source, name: str, files: list[str]) -> Delta:
    """Read the flushes of one sync, in this order. Note what is wrong with them as defects; raise nothing."""
    defects: list[Defect] = []
    changes: dict[str, tuple[Change, ...]] = {}
    flushes: list[Flush] = []
    for file in files:
        try:
            for tensor, change in _read_flush(source, read_shard(source, file), flushes, defects):
                changes[tensor] = (*changes.get(tensor, ()), change)
        except OSError as error:
            defects.append(Defect(MALFORMED, f"{clip(file)} cannot be read: {error.strerror or error}"))
    return Delta(name, source, writer="verl", changes=changes, flushes=tuple(flushes), defects=tuple(defects))


def _read_flush(source: Source, shard: Shard, flushes: list[Flush], defects: list[Defect]) -> list[tuple[str, Change]]:
    """Return the changes of one flush."""
    defects += adopt_defects(shard)
    spans = {name: _locate(shard, name) for name in (SPEC, POSITIONS, VALUES) if name in shard.tensors}
    if (spec_span := spans.get(SPEC)) is None or (values := spans.get(VALUES)) is None:
        defects.append(Defect(UNKNOWN, f"{clip(shard.name)} holds no {SPEC} or no {VALUES}"))
        return []
    if spec_span.nbytes > MAX_SPEC:
        defects.append(
            Defect(UNKNOWN, f"{clip(shard.name)}: its spec has {spec_span.nbytes:,} bytes; none is that long")
        )
        return []
    spec, wrong = parse_object(source.read(shard.name, spec_span.begin, spec_span.nbytes))
    defects += [Defect(MALFORMED, f"{clip(shard.name)}: {defect.text}", SPEC) for defect in wrong]
    if spec is None:
        return []
    encoding = spec.get("encoding")
    if encoding not in ("indices", "dense"):
        text = f"{clip(shard.name)}: its encoding is {clip(repr(encoding))}, not dense or indices"
        defects.append(Defect(UNKNOWN, text, SPEC))
        return []
    if encoding == "dense" and spec.get("verify"):
        encoding = "verify"
    checksum = spec.get("checksum")
    if _is_natural(checksum, MAX_CHECKSUM):
        flushes.append(Flush(values, shard.tensors[VALUES].dtype, spans.get(POSITIONS), checksum))
    else:
        defects.append(Defect(MALFORMED, f"{clip(shard.name)}: its checksum is {_shorten(checksum)}", SPEC))
    params = spec.get("params")
    if not isinstance(params, list):
        defects.append(Defect(MALFORMED, f"{clip(shard.name)}: its params are no list", SPEC))
        return []
    found = []
    for number, param in enumerate(params):
        change = _read_param(param, encoding, shard.tensors[VALUES], values, spans.get(POSITIONS))
        if isinstance(change, str):
            name = param.get("name") if isinstance(param, dict) else None
            key = clip(name) if isinstance(name, str) else f"params[{number}]"
            defects.append(Defect(MALFORMED, f"{clip(shard.name)}: {change}", key))
        else:
            found.append((param["name"], change))
    return found


def _locate(shard: Shard, name: str) -> Span | None:
    return None if name in shard.unfit else Span(shard.name, shard.locate(name), shard.tensors[name].nbytes)


def _read_param(param: Any, encoding: str, tensor: Tensor, values: Span, positions: Span | None) -> Change | str:
    """Return the change that an entry of the spec describes, or what is wrong with it."""
    if not isinstance(param, Mapping) or not isinstance(param.get("name"), str):
        return "an entry of its params has no name"
    dtype, shape = param.get("dtype"), param.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"its dtype {clip(repr(dtype))} is unknown"
    if DTYPES[dtype] != tensor.dtype:
        return f"it is {dtype}, and the values of its flush are {clip(tensor.dtype)}"
    if not isinstance(shape, list) or not all(_is_natural(length) for length in shape) or prod(shape) >= MAX_SIZE:
        return "its shape is not a list of whole numbers"
    width = BITS[tensor.dtype] // 8
    chosen = _read_range(param, "val", values.nbytes // width)
    if isinstance(chosen, str):
        return f"its values, elements {chosen} of its flush"
    data = Span(values.file, values.begin + chosen[0] * width, (chosen[1] - chosen[0]) * width)
    if encoding != "indices":
        return Change(encoding, data, None, tensor.dtype, tuple(shape))
    places = positions or Span(values.file, values.begin, 0)
    chosen = _read_range(param, "pos", places.nbytes)
    if isinstance(chosen, str):
        return f"its positions, bytes {chosen} of its flush"
    if param.get("pos_width", 4) != 4:
        return f"its positions take {_shorten(param.get('pos_width'))} bytes each, and verl reads 4"
    span = Span(places.file, places.begin + chosen[0], chosen[1] - chosen[0])
    return Change(encoding, data, span, tensor.dtype, tuple(shape))


def _read_range(param: Mapping[str, Any], what: str, most: int) -> tuple[int, int] | str:
    """Return begin and end of a param's positions (``pos``) or values (``val``), or what is wrong with them."""
    low, high = param.get(f"{what}_start"), param.get(f"{what}_end")
    if _is_natural(low) and _is_natural(high) and low <= high <= most:
        return low, high
    return f"{_shorten(low)} to {_shorten(high)}, are not within the {most:,}"


def _is_natural(value: Any, end: int = MAX_SIZE) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < end


def _shorten(value: Any) -> str:
    return clip(repr(value), 30) if not isinstance(value, int) or abs(value) < MAX_SIZE else "a number beyond 2^62"


def list_torn_flushes(delta: Delta) -> list[str]:
    """Return the files whose checksum differs from the one sent. Files in a dtype that cannot be widened here are left out."""
    torn = []
    for flush in delta.flushes:
        found = compute_flush_checksum(delta, flush)
        if found is not None and found != flush.checksum:
            torn.append(flush.values.file)
    return torn


def compute_flush_checksum(delta: Delta, flush: Flush) -> int | None:
    """Return verl's checksum of a flush; None where its dtype is unknown here, or its file cannot be read to its end.

    verl takes `torch.hash_tensor` of the positions and of the values, shifts the second by one bit, and joins both by an exclusive
    or. `torch.hash_tensor` is the exclusive or of all elements, each widened to 64 bits: an integer with its sign, a float as a
    double (torch 2.13, measured). The positions are bytes, so their part has eight bits.
    """
    if flush.dtype not in KINDS:
        return None
    try:
        positions = _hash_span(delta, flush.positions, "U8") if flush.positions is not None else 0
        values = _hash_span(delta, flush.values, flush.dtype)
    except OSError:
        return None
    return positions ^ (values << 1)


def _hash_span(delta: Delta, span: Span, dtype: str) -> int:
    import numpy as np

    kind, total = np.dtype(KINDS[dtype]), 0
    for at in range(0, span.nbytes, STEP):
        raw = delta.source.read(span.file, span.begin + at, min(STEP, span.nbytes - at))
        values = np.frombuffer(raw[: len(raw) - len(raw) % kind.itemsize], kind)
        total ^= int(np.bitwise_xor.reduce(_widen(values, dtype))) if values.size else 0
    return total


def _widen(values: NDArray[Any], dtype: str) -> NDArray[np.uint64]:
    import numpy as np

    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            return values.astype(np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64)
