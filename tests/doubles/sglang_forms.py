"""What SGLang is asked for updates on GPUs, in its own request classes; the engine and the GPU are stood in for."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from ckptcheck_worker import sglang_launch, sglang_options, sglang_update, tensor_files
from sglang.srt.utils import MultiprocessingSerializer

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
NOTES: list[str] = []


class Manager:
    """SGLang's tokenizer manager: it says yes, or no to one request, and keeps what it was asked."""

    def __init__(self, refuses: str = "") -> None:
        self.asked: list[Any] = []
        self._refuses = refuses

    def config_value(self, name: str) -> str:
        return "1"

    def __getattr__(self, name: str) -> Any:
        async def call(request: Any, _: Any) -> tuple[bool, str]:
            self.asked.append((name, request))
            return name != self._refuses, "a session is open" if name == self._refuses else ""

        return call


def updated(transport: str) -> list[Any]:
    """Update by one bucket for each weight, and return the requests that SGLang gets."""
    manager = Manager()
    result, requests = _update(manager, transport), []
    assert result["ok"], result
    for method, request in manager.asked:
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        if payloads := fields.pop("serialized_named_tensors", None):
            received = [MultiprocessingSerializer.deserialize(payload) for payload in payloads]
            fields["heard"] = [_values(each) for each in received]
        requests.append(
            [method, {name: value for name, value in fields.items() if isinstance(value, (str, int, list))}]
        )
    return requests


def refused(transport: str) -> list[Any]:
    """Update an SGLang that begins no session; return its answer, and the names of the requests that it gets."""
    manager = Manager("begin_weight_update")
    result = _update(manager, transport)
    return [result["ok"], result["message"], [name for name, _ in manager.asked]]


def _update(manager: Manager, transport: str) -> dict[str, Any]:
    torch.cuda.is_available = lambda: True
    torch.cuda.ipc_collect = lambda: NOTES.append("collected")
    torch.Tensor.cuda = lambda tensor: NOTES.append("placed") or tensor.clone()
    buckets = []
    engine = SimpleNamespace(tokenizer_manager=manager, server_args=SimpleNamespace(tp_size=2))
    group = {"kind": "nccl", "host": "127.0.0.1", "port": 5, "world_size": 3, "key": "sync-1"}
    for name, weight in WEIGHTS.items():
        path = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "bucket")
        file = {"kind": "file", "path": path}
        address = group if transport == "nccl" else tensor_files.write_tensors({name: weight}, file)
        dtype = "F32" if weight.dtype == torch.float32 else "BF16"
        buckets.append({"address": address, "names": [name], "dtypes": [dtype], "shapes": [list(weight.shape)]})

    def wait_in_group() -> None:
        raise AssertionError("an NCCL group has no barrier")

    update = sglang_update.Update(buckets, True, "4", "folder", wait_in_group)
    return asyncio.run(sglang_update.run_update(engine, transport, update))


def _values(heard: Any) -> Any:
    if isinstance(heard, dict):  # a flattened bucket
        return [heard["flattened_tensor"].numel(), [each.name for each in heard["metadata"]]]
    return [[name, tensor.float().flatten().tolist()] for name, tensor in heard]


def notes() -> list[str]:
    """Say what was done on the way."""
    return NOTES


def started(saver: bool, dtype: str = "bfloat16") -> dict[str, Any]:
    """Say what SGLang is given on a GPU, with and without the package that lets it sleep."""
    if saver:
        sys.modules["torch_memory_saver"] = ModuleType("torch_memory_saver")
        sys.modules["torch_memory_saver"].__spec__ = ModuleSpec("torch_memory_saver", None)
    else:
        sys.modules.pop("torch_memory_saver", None)
    return sglang_launch.gpu_arguments(dtype)


def proposes(gpu: bool, tokens: int) -> list[Any]:
    """Say what SGLang is given for the switch `speculative`, and what is made of its answer."""
    known, torch.cuda.is_available = torch.cuda.is_available, lambda: gpu
    try:
        given = sglang_options.engine_arguments({"speculative": tokens})
    finally:
        torch.cuda.is_available = known
    told = {**given, "device": "cuda" if gpu else "cpu"}
    return [given, sglang_options.applied_switches(told.get, "raw")]


def knows(names: list[str]) -> list[bool]:
    """Say which arguments this SGLang has."""
    from sglang.srt.arg_groups.field_order import POSITIONAL_FIELD_ORDER

    return [name in POSITIONAL_FIELD_ORDER for name in names]


def older() -> None:
    """Be SGLang 0.5.17, which has no update sessions."""
    from sglang.srt.entrypoints.engine import Engine

    for kind in Engine.__mro__:
        if "begin_weight_update" in vars(kind):
            del kind.begin_weight_update  # type: ignore[attr-defined]


RPC_METHODS = {
    "updated": updated,
    "refused": refused,
    "notes": notes,
    "started": started,
    "proposes": proposes,
    "knows": knows,
    "older": older,
}
