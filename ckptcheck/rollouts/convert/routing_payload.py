"""Decodes the expert routing that an engine or a server puts into a JSON answer.

- vLLM: `choices[i].routed_experts`, base64 of a .npy file [prompt + response - 1, layers, k], without the first rows where the
  request set `routed_experts_prompt_start` (vllm-project/vllm#44638, #51906).
- prime-rl's server: `{"data": base64, "shape", "dtype", "start"}` (PrimeIntellect-ai/prime-rl
  src/prime_rl/inference/vllm/routed_experts.py at 559b447).
- NeMo Gym: ``nrlre1:<dtype>:<tokens>x<layers>x<k>:<base64>`` (NVIDIA-NeMo/RL nemo_rl/utils/routed_experts_codec.py at 7ea279a).

SGLang sends base64 of int32 without a shape. ckptcheck does not read it: the numbers of layers and choices are unknown.
"""

from __future__ import annotations

import base64
import io
from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.build import UnusableSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

NPY = b"\x93NUMPY"
ENVELOPE = "nrlre1"
DTYPES = ("int8", "uint8", "int16", "uint16", "int32")


def decode_routing(payload: Any, tokens: int, start: Any = None) -> NDArray[Any] | None:
    """Return int32 [tokens - 1, layers, k], -1 for rows before `start`; None where there is no payload of a known form.

    tokens: of prompt and response. start: the first token whose row was asked for; None: the payload says it, or it is 0.
    Raises UnusableSequence for a payload that cannot be read.
    """
    import numpy as np

    if payload is None:
        return None
    try:
        if isinstance(payload, dict):
            rows = _from_bytes(payload["data"], payload["shape"], payload["dtype"])
            start = payload.get("start", start)
        elif isinstance(payload, list):
            rows = np.asarray(payload)
        elif payload.startswith(f"{ENVELOPE}:"):
            _, dtype, shape, data = payload.split(":", 3)
            rows = _from_bytes(data, [int(size) for size in shape.split("x")], dtype)
        else:
            raw = base64.b64decode(payload, validate=True)
            if not raw.startswith(NPY):
                return None
            rows = _from_npy(raw)
    except (AttributeError, EOFError, KeyError, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        raise UnusableSequence("its routed experts cannot be read") from error
    if rows.ndim != 3 or rows.dtype.kind not in "iu":
        raise UnusableSequence(
            f"its routed experts have the shape {list(rows.shape)}, and [tokens, layers, k] is expected"
        )
    rows = rows.astype(np.int32)
    missing = tokens - 1 - len(rows)
    if type(start) is int and 0 < start == missing:
        rows = np.concatenate([np.full((missing, *rows.shape[1:]), -1, np.int32), rows])
    return rows


def _from_npy(raw: bytes) -> NDArray[Any]:
    """Return the array of a .npy file. Raises ValueError: numpy itself would make room for any shape that the file announces."""
    import numpy as np
    from numpy.lib import format

    file = io.BytesIO(raw)
    read_header = format.read_array_header_1_0 if format.read_magic(file) == (1, 0) else format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or prod(shape) * dtype.itemsize != len(raw) - file.tell():
        raise ValueError(shape)
    return np.asarray(np.load(io.BytesIO(raw), allow_pickle=False))


def _from_bytes(data: str, shape: list[int], dtype: str) -> NDArray[Any]:
    """Return an array of bytes in base64. Raises ValueError, TypeError."""
    import numpy as np

    if dtype not in DTYPES or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(dtype)
    raw = base64.b64decode(data, validate=True)
    if len(raw) != prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(shape)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape)
