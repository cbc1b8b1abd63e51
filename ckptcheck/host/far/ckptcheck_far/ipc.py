"""Lends tensors of this process's GPU to another by CUDA IPC: what the other needs to know, in words that JSON can carry.

torch says it as the arguments of `torch.multiprocessing.reductions.rebuild_cuda_tensor`, and vLLM's ipc backend takes these
for each GPU's UUID (ipc_engine.py of vLLM 0.26 to 0.32). They are numbers, bytes, a dtype and two classes; nothing is
pickled, and only what stands here is read back.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Reduce = Callable[[Any], "tuple[Any, tuple[Any, ...]]"]


def uuid(device: int) -> str:
    """Return the UUID of a GPU of this process, as vLLM names it."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def here() -> dict[str, int]:
    """Return the GPUs that this process sees: UUID → number."""
    import torch

    return {uuid(number): number for number in range(torch.cuda.device_count())}


class Lent:
    """Tensors that are lent. They stay where they are until `close`.

    gpus: UUIDs of the GPUs that borrow; a tensor of another GPU is copied to each. Raises LookupError for one that this
    process does not see.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        seen = here()
        if missing := [gpu for gpu in gpus if gpu not in seen]:
            raise LookupError(f"the engine is on GPU {missing[0]}, which this trainer does not see")
        self._numbers = {gpu: seen[gpu] for gpu in gpus}
        self._held: list[Any] = []

    def lend(self, tensor: Any, reduce: Reduce | None = None) -> dict[str, list[Any]]:
        """Return UUID → how the tensor is borrowed. reduce: torch's own unless given."""
        if reduce is None:
            from torch.multiprocessing.reductions import reduce_tensor

            reduce = reduce_tensor
        found = {}
        for gpu, number in self._numbers.items():
            own = tensor.detach().to(f"cuda:{number}").contiguous()
            self._held.append(own)  # what is said of a tensor does not keep it alive
            found[gpu] = spoken(reduce(own)[1])
        return found

    def all(self, weights: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Lend weights; return how each is borrowed, in their order, once they are written."""
        import torch

        said = [self.lend(weight) for _, weight in weights]
        for number in self._numbers.values():
            torch.cuda.synchronize(number)
        return said

    def close(self) -> None:
        """Take all back; whoever borrowed has let go."""
        import torch

        self._held.clear()
        torch.cuda.ipc_collect()


def spoken(value: Any) -> Any:
    """Say a value so that JSON carries it. Raises TypeError for one that nothing here has to do with.

    >>> spoken((3, b"ab", None, True))
    [3, {'bytes': 'YWI='}, None, True]
    """
    import torch

    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (tuple, list)):
        return [spoken(each) for each in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).rpartition(".")[2]}
    for name, known in _classes().items():
        if value is known:
            return {"class": name}
    raise TypeError(f"{value!r} is no part of a CUDA IPC handle that is known")


def understood(said: Any) -> Any:
    """Return what was said; sequences are tuples. Raises ValueError for what `spoken` does not say."""
    import torch

    if said is None or isinstance(said, (bool, int)):
        return said
    if isinstance(said, list):
        return tuple(understood(each) for each in said)
    if isinstance(said, dict) and len(said) == 1:
        kind, value = next(iter(said.items()))
        if kind == "bytes":
            return base64.b64decode(value, validate=True)
        if kind == "dtype" and isinstance(found := getattr(torch, str(value), None), torch.dtype):
            return found
        if kind == "class" and value in _classes():
            return _classes()[value]
    raise ValueError(f"{said!r} is no part of a CUDA IPC handle")


def _classes() -> dict[str, Any]:
    import torch

    storages = {"TypedStorage": torch.storage.TypedStorage, "UntypedStorage": torch.UntypedStorage}
    return {"Tensor": torch.Tensor, **storages}
