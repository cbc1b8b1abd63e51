"""A backend "gloo" for vLLM's weight-transfer API: the only way to use that API without a GPU.

vLLM's own backends move the same bytes by NCCL or CUDA IPC; after the transfer vLLM's own code runs, the same for all backends.
A bucket that names a file is read from there: a draft model's weights have no sender in the group.
"""

from __future__ import annotations

from typing import Any

from . import gloo, tensor_files, tensors

NAME = "gloo"


def register() -> bool:
    """Register the backend with vLLM; return whether this vLLM has the weight-transfer API."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:
        return False
    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, _gloo_backend())
    return True


def _gloo_backend() -> type:
    from dataclasses import dataclass

    import torch
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class Group(WeightTransferInitInfo):  # type: ignore[misc]
        group: dict[str, Any]

    @dataclass
    class GlooBucket(WeightTransferUpdateInfo):  # type: ignore[misc]
        names: list[str]
        dtypes: list[str]
        shapes: list[list[int]]
        file: dict[str, Any] | None = None

    class Gloo(WeightTransferEngine):  # type: ignore[misc]
        init_info_cls = Group
        update_info_cls = GlooBucket
        process_group: Any = None

        def init_transfer_engine(self, init_info: Group) -> None:
            self.process_group = gloo.join(init_info.group, 1 + self.parallel_config.rank)

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            # vLLM's own method synchronizes a device, which a CPU does not have
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: GlooBucket) -> None:
            with torch.no_grad():
                self.model.load_weights(self._received(update_info))

        def _received(self, bucket: GlooBucket) -> Any:
            if bucket.file is not None:
                yield from tensor_files.read_bucket({"address": bucket.file, "names": bucket.names})
                return
            for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes):
                tensor = torch.empty(shape, dtype=getattr(torch, tensors.TORCH[dtype]))
                gloo.broadcast(self.process_group, tensor)
                yield name, tensor

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            if self.process_group is not None:
                self.process_group.barrier().wait()

        def shutdown(self) -> None:
            self.process_group = None

    return Gloo
