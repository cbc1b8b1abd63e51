"""SGLang's end of every transport: one coroutine each, because SGLang's tokenizer manager is asynchronous.

tensor            update_weights_from_tensor, a list of names and tensors
flattened_bucket  update_weights_from_tensor, one contiguous buffer with the position of each tensor
gloo, nccl        update_weights_from_distributed, which SGLang documents for NCCL and which takes backend="gloo" too
disk              update_weights_from_disk

On GPUs the tensors of the first two lie on a GPU, and only CUDA IPC handles are sent.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import interruptions, tensor_files, tensors

Answer = tuple[bool, str]
"""(success, message) of a call of SGLang."""


@dataclass(frozen=True)
class Update:
    """One update of the weights."""

    buckets: list[dict[str, Any]]
    flush: bool
    """Flush the cache with the last bucket, which is SGLang's default."""
    version: str
    """The weight version after the update."""
    folder: str
    """A path at which a folder may be created and removed."""
    wait_in_group: Callable[[], None]
    """Makes the engine's ranks wait at a barrier of the process group, where the sender waits too."""
    selector: str = "all"
    """The models that it updates: target, draft or all."""

    def bucket_options(self, number: int) -> dict[str, Any]:
        """Return the arguments of a bucket (numbers count from 1). The last one has flush and version differently."""
        is_last = number == len(self.buckets)
        options = {"flush_cache": self.flush and is_last, "weight_version": self.version if is_last else None}
        return options if self.selector == "all" else {**options, "selector": self.selector}


@dataclass
class Progress:
    """What an update has done so far."""

    answers: list[Answer]
    begin: float
    """When the update itself began: the time to join a group is no part of it."""
    group: dict[str, Any] | None = None
    """The process group to leave after the update."""
    refusal: str = ""
    """How SGLang refused the event between two buckets."""


def has_session() -> bool:
    """Return whether this SGLang has begin_weight_update and end_weight_update (0.5.23 has them, 0.5.17 does not)."""
    import sglang

    return hasattr(sglang.Engine, "begin_weight_update")


async def run_update(engine: Any, transport: str, update: Update) -> dict[str, Any]:
    """Send the buckets by a transport as one update, and return the result."""
    progress = Progress([], time.perf_counter())
    try:
        await TRANSPORTS[transport](engine, update, progress)
    except Exception as error:
        progress.answers.append((False, f"{type(error).__name__}: {error}"))
    seconds = time.perf_counter() - progress.begin
    if progress.group is not None:
        key = str(progress.group["key"])
        await _ask(engine, "destroy_weights_update_group", "DestroyWeightsUpdateGroup", group_name=key)
    errors = [message for ok, message in progress.answers if not ok]
    version = engine.tokenizer_manager.config_value("weight_version")
    return {
        "ok": not errors,
        "message": "; ".join(errors),
        "seconds": seconds,
        "weight_version": str(version),
        "refusal": progress.refusal,
    }


async def _comes_between(engine: Any, bucket: dict[str, Any], progress: Progress) -> bool:
    """Cause the event between two buckets (interruptions.py); return whether there is no bucket to send."""
    if not interruptions.interrupt(bucket):
        # the sender of a second update that is refused sends nothing
        return bool(progress.refusal and bucket["address"].get("is_second"))
    if progress.refusal:
        return True
    inner = Progress([], progress.begin)
    try:
        kind = interruptions.find_kind(bucket)
        if kind == "begin":
            await _begin_session(engine, inner)
        elif kind == "end":
            await _end_session(engine, inner)
        elif kind == "sleep":
            await _sleep_and_wake(engine)
    except Exception as error:
        inner.answers.append((False, f"{type(error).__name__}: {error}"))
    progress.refusal = "; ".join(message for ok, message in inner.answers if not ok)
    return True


async def _sleep_and_wake(engine: Any) -> None:
    from sglang.srt.managers import io_struct

    await engine.tokenizer_manager.release_memory_occupation(io_struct.ReleaseMemoryOccupationReqInput(), None)
    await engine.tokenizer_manager.resume_memory_occupation(io_struct.ResumeMemoryOccupationReqInput(), None)


async def _send_tensors(engine: Any, update: Update, progress: Progress, *, flatten: bool) -> None:
    """Send tensors in a session, one call a bucket. flatten: as one buffer a bucket."""
    if not await _begin_session(engine, progress, update.selector):
        return
    for number, bucket in enumerate(update.buckets, 1):
        if await _comes_between(engine, bucket, progress):
            continue
        progress.answers.append(await _send_bucket(engine, bucket, flatten, update.bucket_options(number)))
    await _end_session(engine, progress)


async def _send_bucket(engine: Any, bucket: dict[str, Any], flatten: bool, options: dict[str, Any]) -> Answer:
    import torch
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    payload: Any = list(on_engine_device(tensor_files.read_bucket(bucket)))
    if flatten:
        flattened = FlattenedTensorBucket(named_tensors=payload)
        payload = {"flattened_tensor": flattened.get_flattened_tensor(), "metadata": flattened.get_metadata()}
    answer = await _ask(
        engine, "update_weights_from_tensor", "UpdateWeightsFromTensor",
        serialized_named_tensors=[MultiprocessingSerializer.serialize(payload) for _ in range(int(engine.server_args.tp_size))],
        load_format="flattened_bucket" if flatten else None, **options,
    )  # fmt: skip
    if torch.cuda.is_available():
        # frees the device memory that the schedulers have released
        torch.cuda.ipc_collect()
    return answer


def on_engine_device(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield weights on a GPU if there is one, so that SGLang sends only handles.

    A handle names its GPU by number, and schedulers see the same GPUs as this process. A sender in another process uses SGLang's
    monkey_patch_torch_reductions to name it by UUID.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    for name, weight in weights:
        yield name, weight.cuda() if has_gpu else weight


async def _receive_broadcast(engine: Any, update: Update, progress: Progress, *, has_barrier: bool) -> None:
    """Join the sender's process group and receive all buckets.

    has_barrier: the members wait for each other before and after the buckets; an NCCL group connects in its first broadcast.
    """
    progress.group = group = update.buckets[0]["address"]
    has_joined, message = await _ask(
        engine, "init_weights_update_group", "InitWeightsUpdateGroup",
        master_address=group["host"], master_port=int(group["port"]), rank_offset=1, world_size=int(group["world_size"]),
        group_name=str(group["key"]), backend=str(group["kind"]),
    )  # fmt: skip
    progress.answers.append((has_joined, message))
    if has_joined and has_barrier:
        update.wait_in_group()
    progress.begin = time.perf_counter()
    if not has_joined or not await _begin_session(engine, progress, update.selector):
        return
    for number, bucket in enumerate(update.buckets, 1):
        if await _comes_between(engine, bucket, progress):
            continue
        answer = await _ask(
            engine, "update_weights_from_distributed", "UpdateWeightsFromDistributed",
            names=bucket["names"], dtypes=[tensors.TORCH[dtype] for dtype in bucket["dtypes"]], shapes=bucket["shapes"],
            group_name=str(group["key"]), **update.bucket_options(number),
        )  # fmt: skip
        progress.answers.append(answer)
    await _end_session(engine, progress)
    if has_barrier:
        update.wait_in_group()


async def _load_from_disk(engine: Any, update: Update, progress: Progress) -> None:
    """Write a checkpoint of the buckets beside a copy of the engine's own config.json, and have the engine load it."""
    os.makedirs(update.folder)
    try:
        shutil.copy(os.path.join(engine.server_args.model_path, "config.json"), update.folder)
        for number, bucket in enumerate(update.buckets, 1):
            if interruptions.interrupt(bucket):
                continue
            file = f"model-{number:05d}-of-{len(update.buckets):05d}.safetensors"
            os.symlink(bucket["address"]["path"], os.path.join(update.folder, file))
        answer = await _ask(
            engine, "update_weights_from_disk", "UpdateWeightFromDisk",
            model_path=update.folder, flush_cache=update.flush, weight_version=update.version,
        )  # fmt: skip
        progress.answers.append(answer)
    finally:
        shutil.rmtree(update.folder)


async def _begin_session(engine: Any, progress: Progress, selector: str = "all") -> bool:
    """Begin a session, if this SGLang has them; return whether weights may be sent: a refused begin ends the update.

    selector: the models that it updates. At its end a session repacks the layers that it restored at its begin, even if
    nothing was sent.
    """
    if has_session():
        progress.answers.append(await _ask(engine, "begin_weight_update", "BeginWeightUpdate", selector=selector))
        return progress.answers[-1][0]
    return True


async def _end_session(engine: Any, progress: Progress) -> None:
    if has_session():
        progress.answers.append(await _ask(engine, "end_weight_update", "EndWeightUpdate"))


async def end_update(engine: Any) -> None:
    """End an update that a failure left open. Raises RuntimeError with SGLang's message."""
    progress = Progress([], time.perf_counter())
    await _end_session(engine, progress)
    errors = [message for ok, message in progress.answers if not ok]
    if errors:
        raise RuntimeError("; ".join(errors))


async def _ask(engine: Any, call: str, request: str, **fields: Any) -> Answer:
    """Make a call of SGLang's tokenizer manager. request: the class of its argument, without the ending."""
    from sglang.srt.managers import io_struct

    argument = getattr(io_struct, f"{request}ReqInput")(**fields)
    reply = await getattr(engine.tokenizer_manager, call)(argument, None)
    return bool(reply[0]), str(reply[1])


async def weight_version(engine: Any, value: str | None) -> Any:
    """Return the weight version; set it first if a value is given."""
    from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

    if value is not None:
        request = UpdateWeightVersionReqInput(new_version=value, abort_all_requests=False)
        await engine.tokenizer_manager.update_weight_version(request)
    return engine.tokenizer_manager.config_value("weight_version")


TRANSPORTS: dict[str, Callable[[Any, Update, Progress], Awaitable[None]]] = {
    "tensor": partial(_send_tensors, flatten=False),
    "flattened_bucket": partial(_send_tensors, flatten=True),
    "gloo": partial(_receive_broadcast, has_barrier=True),
    "nccl": partial(_receive_broadcast, has_barrier=False),
    "disk": _load_from_disk,
}
"""Transport → the coroutine that takes weights by it: (engine, update, progress); it appends SGLang's answers to the progress."""
