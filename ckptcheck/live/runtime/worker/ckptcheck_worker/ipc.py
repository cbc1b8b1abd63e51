"""Shares tensors of this process's GPU with another process by CUDA IPC: encodes the handles as JSON.

torch describes a shared tensor by the arguments of `torch.multiprocessing.reductions.rebuild_cuda_tensor`, and vLLM's ipc backend
takes these by GPU UUID (ipc_engine.py of vLLM 0.26 to 0.32). They are numbers, bytes, a dtype and two classes; nothing is pickled,
and `decode_handle` accepts nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Reduce = Callable[[Any], "tuple[Any, tuple[Any, ...]]"]


def gpu_uuid(device: int) -> str:
    """Return the UUID of a GPU of this process, as vLLM names it."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def visible_gpus() -> dict[str, int]:
    """Return the GPUs that this process sees: UUID → number."""
    import torch

    return {gpu_uuid(number): number for number in range(torch.cuda.device_count())}


class IpcShare:
    """Tensors that this process shares. It keeps them in memory until `close`.

    gpus: UUIDs of the GPUs on which the receiver opens them; a tensor of another GPU is copied to each. Raises LookupError for a
    GPU that this process does not see.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        visible = visible_gpus()
        if missing := [gpu for gpu in gpus if gpu not in visible]:
            raise LookupError(
                f"the engine is on GPU {missing[0]}, which this trainer does not see: show the trainer that GPU, "
                "or choose another transport"
            )
        self._numbers = {gpu: visible[gpu] for gpu in gpus}
        self._tensors: list[Any] = []

    def share(self, tensor: Any, reduce: Reduce | None = None) -> dict[str, list[Any]]:
        """Return UUID → encoded handle of a tensor. reduce: torch's own reduction unless given."""
        if reduce is None:
            from torch.multiprocessing.reductions import reduce_tensor

            reduce = reduce_tensor
        handles = {}
        for gpu, number in self._numbers.items():
            local = tensor.detach().to(f"cuda:{number}").contiguous()
            # a handle does not keep the tensor alive
            self._tensors.append(local)
            handles[gpu] = encode_handle(reduce(local)[1])
        return handles

    def share_all(self, weights: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Share weights; return their handles in order, once the GPU has written the weights."""
        import torch

        handles = [self.share(weight) for _, weight in weights]
        for number in self._numbers.values():
            torch.cuda.synchronize(number)
        return handles

    def close(self) -> None:
        """Release the tensors; call it after the receiver has closed its handles."""
        import torch

        self._tensors.clear()
        torch.cuda.ipc_collect()


def encode_handle(value: Any) -> Any:
    """Encode a part of a CUDA IPC handle as JSON. Raises TypeError for a value that no handle has.

    >>> encode_handle((3, b"ab", None, True))
    [3, {'bytes': 'YWI='}, None, True]
    """
    import torch

    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (tuple, list)):
        return [encode_handle(part) for part in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).rpartition(".")[2]}
    for name, cls in _classes().items():
        if value is cls:
            return {"class": name}
    raise TypeError(f"{value!r} is not part of a known CUDA IPC handle")


def decode_handle(encoded: Any) -> Any:
    """Return the encoded value; sequences become tuples. Raises ValueError for what `encode_handle` never makes."""
    import torch

    if encoded is None or isinstance(encoded, (bool, int)):
        return encoded
    if isinstance(encoded, list):
        return tuple(decode_handle(part) for part in encoded)
    if isinstance(encoded, dict) and len(encoded) == 1:
        kind, value = next(iter(encoded.items()))
        if kind == "bytes":
            return base64.b64decode(value, validate=True)
        if kind == "dtype" and isinstance(dtype := getattr(torch, str(value), None), torch.dtype):
            return dtype
        if kind == "class" and value in _classes():
            return _classes()[value]
    raise ValueError(f"{encoded!r} is not part of a CUDA IPC handle")


def _classes() -> dict[str, Any]:
    import torch

    storages = {"TypedStorage": torch.storage.TypedStorage, "UntypedStorage": torch.UntypedStorage}
    return {"Tensor": torch.Tensor, **storages}


def nccl_version() -> str:
    """Return the version of torch's NCCL as ``2.27.5``; "" if torch has none."""
    import torch

    if not torch.cuda.is_available() or not hasattr(torch.cuda, "nccl"):
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))
