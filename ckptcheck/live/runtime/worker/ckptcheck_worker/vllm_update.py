"""vLLM's end of every transport: one function each, and the backend of the weight-transfer API that vLLM is started with.

reload        reload_weights on every worker, all buckets in one call: it finalizes every layer that got a tensor
load_weights  the model's own load_weights on every worker, one call a bucket, as frameworks that patch the model do
gloo          the weight-transfer API with a backend of ckptcheck (vllm_gloo.py); an update names tensors, dtypes and shapes
nccl          the weight-transfer API with vLLM's own backend, which gets the unique id of a group (communicator.py)
ipc           the weight-transfer API with vLLM's own backend; an update has a CUDA IPC handle for each tensor and GPU UUID (ipc.py)

The weight-transfer API is that of vLLM's offline.py among its entrypoints for RL. Nothing is packed, which is the worker's default.
Read against vLLM 0.26.0 and 0.32.0.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from . import interruptions, ipc, tensors, vllm_gloo

CallRanks = Callable[[str, "list[Any]"], "list[Any]"]
"""Calls a method of every worker's extension."""
GPU_BACKENDS = ("ipc", "nccl")


def choose_backend(transport: str, on_cpu: bool) -> str:
    """Return the weight-transfer backend to start vLLM with, "" for none. transport: by which weights will come.

    On a CPU vLLM always gets the gloo backend, if it has the API. On GPUs it only gets a backend that the transport
    needs: ipc imports ray in vLLM 0.26. Raises RuntimeError for a transport that cannot work on this device or with
    this vLLM.
    """
    if on_cpu:
        if transport in GPU_BACKENDS:
            raise RuntimeError(
                f"{transport} carries weights between GPUs only, and this vLLM computes on a CPU: take reload, gloo or load_weights"
            )
        return vllm_gloo.NAME if vllm_gloo.register() else ""
    if transport == vllm_gloo.NAME:
        raise RuntimeError(
            "gloo carries weights to a CPU only, and this vLLM computes on GPUs: take reload, ipc, nccl or load_weights"
        )
    if transport == "nccl" and not accepts_unique_id():
        raise RuntimeError(
            "this vLLM joins an NCCL group only where the trainer's Python has vLLM too; 0.32 accepts the unique id of a group"
        )
    return transport if transport in GPU_BACKENDS else ""


def accepts_unique_id() -> bool:
    """Return whether vLLM's nccl backend accepts the unique id of a group: 0.26 does not."""
    try:
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    except ImportError:
        return False
    return "nccl_unique_id_b64" in {field.name for field in fields(NCCLWeightTransferInitInfo)}


def load(
    llm: Any, call_ranks: CallRanks, buckets: list[dict[str, Any]], version: str, *, raw: bool, is_draft: bool = False
) -> dict[str, Any]:
    """Update the weights by reload_weights, or raw: by the model's own load_weights. is_draft: of the draft model, raw only."""
    begin = time.perf_counter()
    try:
        reports = call_ranks("load_weights", [buckets, raw, *([True] if is_draft else [])])
    except Exception as error:
        return _result(begin, describe_error(error))
    errors = [f"rank {report['rank']}: {report['error']}" for report in reports if "error" in report]
    return _result(begin, "; ".join(errors), loaded_names=reports[0].get("loaded_names"))


def transfer(llm: Any, call_ranks: CallRanks, buckets: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Update the weights by the weight-transfer API, one call a bucket; return the result. version: of the update."""
    begin, error, refusal = time.perf_counter(), "", ""
    call_ranks("fill_new_memory", [True])
    try:
        llm.init_weight_transfer_engine({"init_info": init_info(buckets[0]["address"])})
        # the time to join the group is no part of the update
        begin = time.perf_counter()
        llm.start_weight_update()
        for bucket in buckets:
            if interruptions.interrupt(bucket):
                refusal = refusal or _interrupt(llm, interruptions.find_kind(bucket), version)
            # the sender of a second update that is refused sends nothing
            elif not (refusal and bucket["address"].get("is_second")):
                llm.update_weights({"update_info": update_info(bucket)})
        _finish(llm, version)
    except Exception as exception:
        error = describe_error(exception)
    seconds = time.perf_counter() - begin
    try:
        _shut_down(llm)
    except Exception as exception:
        error = error or describe_error(exception)
    call_ranks("fill_new_memory", [False])
    more = {"weight_version": _weight_version(llm), "refusal": refusal}
    return {**_result(begin, error, **more), "seconds": seconds}


def update_draft(llm: Any, call_ranks: CallRanks, buckets: list[dict[str, Any]], transport: str) -> dict[str, Any]:
    """Update the draft model with weights from files, in a session of its own; return the result.

    transport: that of the policy's weights. load_weights calls the draft model's own loader, as frameworks that patch the model do.
    """
    begin, error = time.perf_counter(), ""
    if transport == "load_weights":
        return load(llm, call_ranks, buckets, "", raw=True, is_draft=True)
    call_ranks("fill_new_memory", [True])
    try:
        if not hasattr(llm, "start_draft_weight_update"):
            raise RuntimeError("this vLLM has no session for a draft model; 0.28 has one")
        llm.start_draft_weight_update()
        for bucket in buckets:
            info = {key: bucket[key] for key in ("names", "dtypes", "shapes")}
            llm.update_weights({"update_info": {**info, "file": bucket["address"]}})
        llm.finish_weight_update()
    except Exception as exception:
        error = describe_error(exception)
    call_ranks("fill_new_memory", [False])
    return _result(begin, error)


def _interrupt(llm: Any, kind: str, version: str) -> str:
    """Begin or end a second update, or make the engine sleep, during an update; return vLLM's refusal, "" for none."""
    try:
        if kind == "begin":
            llm.start_weight_update()
        elif kind == "end":
            _finish(llm, f"{version}-second")
        elif kind == "sleep":
            llm.sleep(level=1)
            llm.wake_up()
    except Exception as error:
        return describe_error(error)
    return ""


def init_info(address: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of init_weight_transfer_engine. address: of the buckets."""
    if address["kind"] == vllm_gloo.NAME:
        return {"group": address}
    if address["kind"] == "nccl-id":
        return {"rank_offset": 1, "world_size": address["world_size"], "nccl_unique_id_b64": address["unique_id"]}
    return {}


def update_info(bucket: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of update_weights for a bucket."""
    kind = bucket["address"]["kind"]
    if kind == vllm_gloo.NAME:
        return {key: bucket[key] for key in ("names", "dtypes", "shapes")}
    info = {
        "names": bucket["names"],
        "dtype_names": [tensors.TORCH[dtype] for dtype in bucket["dtypes"]],
        "shapes": bucket["shapes"],
    }
    if kind == "ipc":
        info["ipc_handles"] = [
            {gpu: ipc.decode_handle(handle) for gpu, handle in handles.items()}
            for handles in bucket["address"]["handles"]
        ]
    return info


def end_update(llm: Any) -> None:
    """End an update that a failure left open, and leave its group. Raises what vLLM raises."""
    try:
        _finish(llm, "")
    finally:
        _shut_down(llm)


def _finish(llm: Any, version: str) -> None:
    """End the update with its version, if this vLLM keeps one."""
    parameters = inspect.signature(llm.finish_weight_update).parameters
    llm.finish_weight_update(**({"weight_version": version} if "weight_version" in parameters else {}))


def _weight_version(llm: Any) -> str | None:
    """Return the weight version; None if this vLLM keeps none."""
    return str(llm.get_weight_version()) if hasattr(llm, "get_weight_version") else None


def _shut_down(llm: Any) -> None:
    """Disconnect from the trainer, if this vLLM can."""
    if hasattr(llm, "shutdown_weight_transfer_engine"):
        llm.shutdown_weight_transfer_engine()


def _result(begin: float, error: str = "", **more: Any) -> dict[str, Any]:
    """Return the result of an update that began at `begin`."""
    return {"ok": not error, "message": error, "seconds": time.perf_counter() - begin, **more}


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an exception."""
    return f"{type(error).__name__}: {error}"


TRANSPORTS: dict[str, Callable[[Any, CallRanks, list[dict[str, Any]], str], dict[str, Any]]] = {
    "reload": partial(load, raw=False),
    "gloo": transfer,
    "nccl": transfer,
    "ipc": transfer,
    "load_weights": partial(load, raw=True),
}
"""Transport → the function that takes weights by it: (llm, call_ranks, buckets, version) → the result."""
