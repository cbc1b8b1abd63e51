"""SGLang's update calls, one function for each route; all are asynchronous, as its tokenizer manager is.

tensor            update_weights_from_tensor, a list of names and tensors
flattened_bucket  update_weights_from_tensor, one run of bytes and where each tensor lies in it
gloo, nccl        update_weights_from_distributed; the engine's own name for NCCL's route, on a CPU with backend="gloo"
disk              update_weights_from_disk

On GPUs the tensors of the first two lie on one, and what is sent is how to open its memory (CUDA IPC).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import plane, tensors

GROUPS = ("gloo", "nccl")


def has_session() -> bool:
    """Say whether this SGLang has begin_weight_update and end_weight_update (0.5.23 has, 0.5.17 has not)."""
    import sglang

    return hasattr(sglang.Engine, "begin_weight_update")


async def update(
    engine: Any,
    parcels: list[dict[str, Any]],
    transport: str,
    flush: bool,
    version: str,
    folder: str,
    meet: Callable[[], None],
) -> dict[str, Any]:
    """Send the parcels as one update and say what came of it.

    flush: forget the cache with the last one, as SGLang does. folder: one that may be made and removed. meet: has the engine's
    ranks wait for the sender in the group, which waits for them at its beginning and its end.
    """
    said: list[tuple[bool, str]] = []
    begin = time.perf_counter()
    group = parcels[0]["address"] if transport in GROUPS else {}
    try:
        if transport == "disk":
            said.append(await _from_disk(engine, parcels, flush, version, folder))
        else:
            if group:
                said.append(await _joined(engine, group))
                if said[-1][0] and transport == "gloo":  # members of an NCCL group meet in its first broadcast
                    meet()
                begin = time.perf_counter()  # who waited for whom in the group is not the cost of a sync
            if all(ok for ok, _ in said):
                said += await _in_session(engine, parcels, transport, flush, version)
                if transport == "gloo":
                    meet()
    except Exception as error:
        said.append((False, f"{type(error).__name__}: {error}"))
    seconds = time.perf_counter() - begin
    if group:
        await _left(engine, group)
    wrong = [message for ok, message in said if not ok]
    now = engine.tokenizer_manager.config_value("weight_version")
    return {"ok": not wrong, "message": "; ".join(wrong), "seconds": seconds, "version": str(now)}


async def _in_session(
    engine: Any, parcels: list[dict[str, Any]], transport: str, flush: bool, version: str
) -> list[tuple[bool, str]]:
    said = []
    if has_session():
        said.append(await _begin(engine))
    for number, parcel in enumerate(parcels, 1):
        last = number == len(parcels)
        send = _by_group if transport in GROUPS else _by_tensor
        said.append(await send(engine, parcel, transport, flush and last, version if last else None))
    if has_session():
        said.append(await _end(engine))
    return said


async def _begin(engine: Any) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput

    return _said(await engine.tokenizer_manager.begin_weight_update(BeginWeightUpdateReqInput(), None))


async def _end(engine: Any) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import EndWeightUpdateReqInput

    return _said(await engine.tokenizer_manager.end_weight_update(EndWeightUpdateReqInput(), None))


def _said(answer: Any) -> tuple[bool, str]:
    return bool(answer[0]), str(answer[1])


async def _by_tensor(
    engine: Any, parcel: dict[str, Any], transport: str, flush: bool, version: str | None
) -> tuple[bool, str]:
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    named: Any = list(placed(plane.opened(parcel)))
    if transport == "flattened_bucket":
        bucket = FlattenedTensorBucket(named_tensors=named)
        named = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
    form = transport if transport == "flattened_bucket" else None
    said = await _tensors(engine, named, form, flush, version)
    _collect()
    return said


def placed(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Put weights where SGLang would have them: on a GPU where there is one, so that only handles are sent.

    A handle names its GPU by number, and schedulers see the same GPUs as this process. Who sends from elsewhere has SGLang's
    monkey_patch_torch_reductions name it by UUID; after that no tensor of the CPU can be sent, and `looked` sends one.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    for name, weight in weights:
        yield name, weight.cuda() if on_gpu else weight


def _collect() -> None:
    """Give back the device memory that schedulers have let go of."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.ipc_collect()


async def _tensors(engine: Any, named: Any, form: str | None, flush: bool, version: str | None) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.utils import MultiprocessingSerializer

    ranks = int(engine.server_args.tp_size)  # what it was given is what it has
    request = UpdateWeightsFromTensorReqInput(
        serialized_named_tensors=[MultiprocessingSerializer.serialize(named) for _ in range(ranks)],
        load_format=form,
        flush_cache=flush,
        weight_version=version,
    )
    return _said(await engine.tokenizer_manager.update_weights_from_tensor(request, None))


async def _joined(engine: Any, group: dict[str, Any]) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import InitWeightsUpdateGroupReqInput

    request = InitWeightsUpdateGroupReqInput(
        master_address=group["host"],
        master_port=int(group["port"]),
        rank_offset=1,
        world_size=int(group["world_size"]),
        group_name=str(group["key"]),
        backend=str(group["plane"]),
    )
    return _said(await engine.tokenizer_manager.init_weights_update_group(request, None))


async def _left(engine: Any, group: dict[str, Any]) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import DestroyWeightsUpdateGroupReqInput

    request = DestroyWeightsUpdateGroupReqInput(group_name=str(group["key"]))
    return _said(await engine.tokenizer_manager.destroy_weights_update_group(request, None))


async def _by_group(engine: Any, parcel: dict[str, Any], _: str, flush: bool, version: str | None) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqInput

    request = UpdateWeightsFromDistributedReqInput(
        names=parcel["names"],
        dtypes=[tensors.TORCH[dtype] for dtype in parcel["dtypes"]],
        shapes=parcel["shapes"],
        group_name=str(parcel["address"]["key"]),
        flush_cache=flush,
        weight_version=version,
    )
    return _said(await engine.tokenizer_manager.update_weights_from_distributed(request, None))


async def _from_disk(
    engine: Any, parcels: list[dict[str, Any]], flush: bool, version: str, folder: str
) -> tuple[bool, str]:
    """Write a checkpoint of the parcels beside the engine's own config.json, and name it to the engine."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    os.makedirs(folder)
    try:
        shutil.copy(os.path.join(engine.server_args.model_path, "config.json"), folder)
        for number, parcel in enumerate(parcels, 1):
            file = f"model-{number:05d}-of-{len(parcels):05d}.safetensors"
            os.symlink(parcel["address"]["path"], os.path.join(folder, file))
        request = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=flush, weight_version=version)
        said = await engine.tokenizer_manager.update_weights_from_disk(request, None)
        return _said(said)
    finally:
        shutil.rmtree(folder)


async def version(engine: Any, value: str | None) -> Any:
    """Return the weight version, set first where a value is given."""
    from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

    if value is not None:
        request = UpdateWeightVersionReqInput(new_version=value, abort_all_requests=False)
        await engine.tokenizer_manager.update_weight_version(request)
    return engine.tokenizer_manager.config_value("weight_version")


async def check(engine: Any, action: str) -> dict[str, Any]:
    """Ask SGLang's own weight checker."""
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    ok, message, ranks, *_ = await engine.tokenizer_manager.check_weights(CheckWeightsReqInput(action=action), None)
    checksums = [dict(rank["checksums"] if isinstance(rank, dict) else rank.checksums) for rank in ranks or ()]
    return {"ok": bool(ok), "message": str(message), "checksums": checksums}


def looked(engine: Any, loader: str, request: str) -> None:
    """Hand a request to a custom weight loader, in a session of its own."""
    import torch

    async def work() -> list[tuple[bool, str]]:
        named = [("request", torch.tensor(list(request.encode()), dtype=torch.uint8))]
        said = [await _begin(engine)] if has_session() else []
        said.append(await _tensors(engine, named, loader, False, None))
        return said + ([await _end(engine)] if has_session() else [])

    wrong = [message for ok, message in engine.loop.run_until_complete(work()) if not ok]
    if wrong:
        raise RuntimeError("; ".join(wrong))
