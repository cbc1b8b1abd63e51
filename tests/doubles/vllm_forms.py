"""vLLM's own GPU backends without a GPU: the real classes parse the worker's arguments and run their receiving code.

The communicator, the UUIDs of GPUs, and the function that opens another process's memory are stand-ins.
"""

from __future__ import annotations

import base64
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from ckptcheck_worker import ipc, vllm_force_tokens, vllm_launch, vllm_update, vllm_worker
from vllm import platforms
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
from vllm.engine.arg_utils import EngineArgs

sys.path.append(str(Path(__file__).parent))
from vllm_experts import balanced

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(1)}
ID = base64.b64encode(bytes(range(128))).decode()
torch.cuda.current_stream = lambda: None
torch.accelerator.synchronize = lambda: None


class Loaded:
    """The model."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def load_weights(self, weights: Any) -> None:
        self.weights.update(weights)


class Llm:
    """LLM as far as the weight-transfer API goes, over one backend of vLLM's. version: keeps weight versions, as 0.32 does."""

    def __init__(self, kind: Any, calls: list[str]) -> None:
        self.calls, self.model = calls, Loaded()
        self.engine = kind.__new__(kind)
        self.engine.model, self.engine.device, self.engine.packed = self.model, torch.device("cpu", 0), False
        self.told: Any = None

    def init_weight_transfer_engine(self, request: dict[str, Any]) -> None:
        self.calls.append("init")
        self.told = self.engine.parse_init_info(request["init_info"])

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, request: dict[str, Any]) -> None:
        self.calls.append("update")
        self.engine.update_weights(request["update_info"])

    def finish_weight_update(self) -> None:
        self.calls.append("finish")


class Newer(Llm):
    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(f"finish {weight_version}")

    def get_weight_version(self) -> str:
        return "7"

    def shutdown_weight_transfer_engine(self) -> None:
        self.calls.append("shutdown")


def parcels(address: dict[str, Any]) -> list[dict[str, Any]]:
    """Two buckets of the weights."""
    dtypes = {torch.float32: "F32", torch.bfloat16: "BF16"}
    found = []
    for names in (["a", "b"], ["c"]):
        held = [WEIGHTS[name] for name in names]
        shapes, types = [list(each.shape) for each in held], [dtypes[each.dtype] for each in held]
        lent = [{"A": ipc.encode_handle(handle(name))} for name in names]
        own = {**address, "handles": lent} if address["kind"] == "ipc" else address
        found.append({"address": own, "names": names, "dtypes": types, "shapes": shapes})
    return found


def handle(name: str) -> tuple[Any, ...]:
    weight = WEIGHTS[name]
    tensor = (torch.Tensor, weight.size(), weight.stride(), 0, torch.storage.TypedStorage, weight.dtype)
    return (*tensor, 5, name.encode(), weight.nbytes, 0, False, b"", 0, b"", False)


def updated(kind: str, newer: bool) -> dict[str, Any]:
    """Run an update by one of vLLM's backends, and say what it came to."""
    calls: list[str] = []
    llm = (Newer if newer else Llm)(
        nccl_engine.NCCLWeightTransferEngine if kind == "nccl-id" else ipc_engine.IPCWeightTransferEngine, calls
    )
    if kind == "nccl-id":
        coming = iter(WEIGHTS.values())
        llm.engine.model_update_group = SimpleNamespace(
            broadcast=lambda tensor, src, stream: tensor.copy_(next(coming)) if src == 0 else None
        )
    else:
        torch.cuda.get_device_properties = lambda index: SimpleNamespace(uuid="A")
        ipc_engine.rebuild_cuda_tensor = opened
    address = {"kind": kind, "world_size": 3, "unique_id": ID}
    result = vllm_update.transfer(
        llm, lambda method, arguments: calls.append(f"{method} {arguments[0]}"), parcels(address), "1"
    )
    same = (
        {name: torch.equal(llm.model.weights[name], weight) for name, weight in WEIGHTS.items()} if result["ok"] else {}
    )
    info = {
        name: getattr(llm.told, name) for name in ("rank_offset", "world_size", "packed") if hasattr(llm.told, name)
    }
    return {"answer": result, "calls": calls, "same": same, "told": info}


def opened(*arguments: Any) -> Any:
    """Open another process's memory."""
    known = WEIGHTS[arguments[7].decode()]
    assert arguments[6] == 0  # vLLM puts its own number of the GPU there
    assert arguments[:6] == handle(arguments[7].decode())[:6]
    return known


def backends() -> list[str]:
    """Return the backend that vLLM is started with on GPUs for each transport, and on a CPU."""
    on_gpus = [vllm_update.choose_backend(transport, False) for transport in ("reload", "ipc", "nccl", "load_weights")]
    return [*on_gpus, vllm_update.choose_backend("reload", True)]


def forced() -> list[list[int]]:
    """Have vLLM's second model runner's interface decode given tokens: the rows' likeliest tokens, step by step."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext

    acting = vllm_force_tokens.ForceTokens(None, None)
    assert isinstance(acting, LogitsProcessor)
    asked = [{"forced": [4, 2], "after": 3}, None, {"forced": [1], "after": 5}]
    took = [
        acting.add_request(slot, SamplingParams(extra_args=extra)) for slot, extra in zip((7, 3, 5), asked, strict=True)
    ]
    assert took == [True, False, True]
    found = []
    for lengths in ([3, 9, 4], [4, 10, 5], [5, 11, 6]):
        logits = torch.arange(6.0).repeat(3, 1)
        here = LogitsContext(*[None] * 7)
        object.__setattr__(here, "idx_mapping_np", np.array([7, 3, 5]))
        object.__setattr__(here, "seq_lens_upper_bound_np", np.array([*lengths, 1]))  # it may be longer than the batch
        found.append(acting.apply(logits, here).argmax(-1).tolist())
    assert not acting.add_request(7, SamplingParams())  # another request in the same slot
    object.__setattr__(here, "seq_lens_upper_bound_np", np.array([3, 9, 4]))
    found.append(acting.apply(torch.arange(6.0).repeat(3, 1), here).argmax(-1).tolist())
    return found


def started() -> list[dict[str, Any]]:
    """Say what vLLM is given on a CPU, on a GPU, on a device that cannot sleep, and on a GPU where nothing sleeps."""
    found = []
    for cpu, sleeps, wanted in ((True, False, True), (False, True, True), (False, False, True), (False, True, False)):
        platforms.current_platform = SimpleNamespace(is_cpu=lambda: cpu, is_sleep_mode_available=lambda: sleeps)  # noqa: B023
        found.append(vllm_launch.gpu_arguments(wanted))
    return found


def knows(names: list[str]) -> list[bool]:
    """Say which arguments this vLLM has."""
    known = {field.name for field in fields(EngineArgs)}
    return [name in known for name in names]


def timed() -> list[str]:
    """Say what an update does that is timed, and one that is not."""
    done: list[str] = []

    class Worker(vllm_worker.Extension):
        rank = 0

        def reload_weights(self, **_: Any) -> None:
            done.append("filled" if torch.are_deterministic_algorithms_enabled() else "as in a job")

    worker = Worker()
    for is_timed in (True, False):
        worker.ckptcheck_time_updates(is_timed)
        assert worker.ckptcheck_load_weights([], raw=False) == {"rank": 0, "loaded_names": None}
        worker.ckptcheck_fill_new_memory(True)
        worker.reload_weights()
        worker.ckptcheck_fill_new_memory(False)
    worker.reload_weights()
    return done


RPC_METHODS = {
    "timed": timed,
    "updated": updated,
    "backends": backends,
    "forced": forced,
    "started": started,
    "knows": knows,
    "balanced": balanced,
}
