"""vLLM's weight-transfer API (offline.py of its entrypoints for RL): which backend, and what each wants to be told.

gloo  on a CPU, a backend of ours (vllm_gloo.py); an update says names, dtypes and shapes
nccl  vLLM's own; we give it the unique id of a group (communicator.py)
ipc   vLLM's own; an update says for every tensor, by UUID of the GPU, how it is borrowed (ipc.py)

Nothing is packed: the worker's own default where no trainer of vLLM's says otherwise. Read against vLLM 0.26.0 and 0.32.0.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from . import ipc, tensors, vllm_gloo

ON_GPU = ("ipc", "nccl")
Ask = Callable[[str, "list[Any]"], "list[Any]"]


def backend(wanted: str, on_cpu: bool) -> str:
    """Return the backend to start vLLM with, "" for none. wanted: how weights will reach it, whether by this API or not.

    On GPUs none is made that is not asked for: that of ipc imports ray in vLLM 0.26. Raises RuntimeError for nccl in a vLLM that
    cannot be told a unique id.
    """
    if on_cpu:
        return vllm_gloo.NAME if vllm_gloo.register() else ""
    if wanted == "nccl" and not takes_id():
        raise RuntimeError(
            "this vLLM joins an NCCL group only where the trainer's Python has vLLM too; 0.32 can be told the id of one"
        )
    return wanted if wanted in ON_GPU else ""


def takes_id() -> bool:
    """Say whether vLLM's nccl backend can be told the unique id of a group: 0.26 cannot."""
    try:
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    except ImportError:
        return False
    return "nccl_unique_id_b64" in {field.name for field in fields(NCCLWeightTransferInitInfo)}


def opening(address: dict[str, Any]) -> dict[str, Any]:
    """Return what init_weight_transfer_engine is told. address: of the parcels, a group or one that lends memory."""
    if address["plane"] == vllm_gloo.NAME:
        return {"group": address}
    if address["plane"] == "nccl-id":
        return {"rank_offset": 1, "world_size": address["world_size"], "nccl_unique_id_b64": address["unique_id"]}
    return {}


def bucket(parcel: dict[str, Any]) -> dict[str, Any]:
    """Return what update_weights is told of a parcel."""
    plane = parcel["address"]["plane"]
    if plane == vllm_gloo.NAME:
        return {key: parcel[key] for key in ("names", "dtypes", "shapes")}
    told = {
        "names": parcel["names"],
        "dtype_names": [tensors.TORCH[dtype] for dtype in parcel["dtypes"]],
        "shapes": parcel["shapes"],
    }
    if plane == "ipc":
        told["ipc_handles"] = [
            {gpu: ipc.understood(said) for gpu, said in borrowed.items()} for borrowed in parcel["address"]["lent"]
        ]
    return told


def finish(llm: Any, version: str) -> None:
    """End the update, and say its version where this vLLM keeps one."""
    named = inspect.signature(llm.finish_weight_update).parameters
    llm.finish_weight_update(**({"weight_version": version} if "weight_version" in named else {}))


def version(llm: Any) -> str | None:
    """Return the weight version, None where this vLLM keeps none."""
    return str(llm.get_weight_version()) if hasattr(llm, "get_weight_version") else None


def transfer(llm: Any, ask: Ask, parcels: list[dict[str, Any]], number: str) -> dict[str, Any]:
    """Update the weights, one call a bucket; say what came of it. ask: of every worker's extension; number: of the update."""
    begin, error = time.perf_counter(), ""
    ask("blank", [True])
    try:
        llm.init_weight_transfer_engine({"init_info": opening(parcels[0]["address"])})
        begin = time.perf_counter()  # who waited for whom in the group is not the cost of a sync
        llm.start_weight_update()
        for parcel in parcels:
            llm.update_weights({"update_info": bucket(parcel)})
        finish(llm, number)
    except Exception as trouble:
        error = told(trouble)
    seconds = time.perf_counter() - begin
    try:
        leave(llm)
    except Exception as trouble:
        error = error or told(trouble)
    ask("blank", [False])
    return {**answer(begin, error, version=version(llm)), "seconds": seconds}


def leave(llm: Any) -> None:
    """Let go of the trainer, where this vLLM knows how."""
    if hasattr(llm, "shutdown_weight_transfer_engine"):
        llm.shutdown_weight_transfer_engine()


def answer(begin: float, error: str = "", **more: Any) -> dict[str, Any]:
    """Say what came of an update that began then."""
    return {"ok": not error, "message": error, "seconds": time.perf_counter() - begin, **more}


def told(error: BaseException) -> str:
    """Name an exception."""
    return f"{type(error).__name__}: {error}"
