"""SGLang in a tree of worker processes (see ckptcheck_worker/sglang_engine.py). Read against SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import Bucket, UpdateResult
from ckptcheck.live.runtime.engines.loading import LaunchOptions
from ckptcheck.live.runtime.engines.remote import RemoteEngine
from ckptcheck.live.runtime.engines.sizing import kv_cache_size
from ckptcheck.live.runtime.process.errors import ERROR_LINE, RemoteError, most_telling_line

MIN_CACHE_TOKENS = 4096
"""Tokens of the KV cache, unless more are needed."""


@dataclass(frozen=True)
class SglangOptions(LaunchOptions):
    """How SGLang is started. In plain mode it computes quantized layers on a CPU, which stock SGLang does on GPUs only."""

    tokens: int = MIN_CACHE_TOKENS
    """Tokens of the KV cache."""


class SglangEngine(RemoteEngine[SglangOptions]):
    """A running SGLang. Its default environment is sglang-cpu.

    A tensor of the wrong shape kills SGLang, so `update_weights` then raises WorkerDied with the end of SGLang's log.
    """

    name = "sglang"
    title = "SGLang"
    module = "ckptcheck_worker.sglang_engine"
    variables: ClassVar[Mapping[str, str]] = {
        # without it gloo connects to the address of the machine's hostname
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # a trainer computes on the same cores: idle threads sleep
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    pause_modes = ("retract", "in_place", "abort", "wait")
    # SGLang waits forever for a scheduler that hangs
    call_timeout = 600.0

    @classmethod
    def default_options(cls) -> SglangOptions:
        """Return the default options."""
        return SglangOptions()

    @classmethod
    def options_for(cls, checkpoint: Path, concurrent_sequences: int, **options: Any) -> SglangOptions:
        """Return options with a KV cache for so many sequences."""
        tokens, _ = kv_cache_size(checkpoint, options["context_len"], concurrent_sequences, options["dtype"])
        return SglangOptions(**options, tokens=max(tokens, MIN_CACHE_TOKENS))

    def restart(self, checkpoint: Path, options: SglangOptions | None = None, *, timeout: float | None = None) -> None:
        """Load another checkpoint, or the same one again; see `RemoteEngine.restart`.

        On a CPU a worker serves one start: SGLang ends the process that its own are forked from, and the next one would import
        everything again. A new worker takes as long, or no time if it is a copy of one that has imported.
        """
        super().restart(checkpoint, options, timeout=timeout)
        self._needs_new_worker = self.info.facts.get("device") == "cpu"

    def can_restart_with(self, options: SglangOptions) -> bool:
        """Return whether the running worker can load a checkpoint with these options: a worker keeps its mode."""
        return options.mode == self.options.mode

    @classmethod
    def expert_arguments(cls, ranks: int) -> dict[str, Any]:
        """Return the argument for so many ranks of expert parallelism."""
        return {"ep_size": ranks} if ranks > 1 else {}

    def _start_arguments(self) -> dict[str, Any]:
        # only at sleep level 1 SGLang keeps a copy of its weights on the host
        extra = {} if self.options.sleep_level == 1 else {"enable_weights_cpu_backup": False}
        if not self.options.sleep_level:
            extra["enable_memory_saver"] = False
        return {"tokens": self.options.tokens, "options": {**self.options.extra_arguments, **extra}}

    def _handle_failed_start(self, error: RemoteError, log_before: Sequence[str]) -> None:
        """Raise the error of the scheduler that died, if the log has it: SGLang itself only reports that one died.

        A scheduler that does not start kills the process that forked it, and the next start would wait for that process forever;
        so the next start gets a new worker.
        """
        self._needs_new_worker = True
        new_lines = tuple(line for line in self._worker.read_log_tail() if line not in log_before)
        if not new_lines or "scheduler died" not in error.remote_message:
            return
        match = ERROR_LINE.search(most_telling_line(new_lines))
        if match is None or not match[1]:
            return
        exception_type, _, message = match.string[match.start() :].partition(": ")
        raise RemoteError(self.name, "start", exception_type, message, error.remote_traceback) from error

    @classmethod
    def lora_arguments(cls, slots: int, rank: int, modules: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of sglang.Engine for adapters of this rank. slots: how many it holds at once, the base model too."""
        return {
            "enable_lora": True, "max_loras_per_batch": slots, "max_lora_rank": rank, "lora_target_modules": list(modules),
        }  # fmt: skip

    def update_weights(
        self,
        buckets: Sequence[Bucket],
        transport: str,
        *,
        timeout: float | None = None,
        version: str | None = None,
        flush: bool = True,
    ) -> UpdateResult:
        """Update the weights by one of `transports`; see `RemoteEngine.update_weights`.

        flush: have SGLang flush its cache with the last bucket, which is SGLang's default.
        """
        more = {} if version is None else {"version": version}
        return self._update(buckets, transport, timeout, flush=flush, **more)

    def sleep(self, level: int = 1) -> None:
        """Release device memory (release_memory_occupation); on a CPU nothing is released.

        level: the one that SGLang was started for. Raises CkptcheckError for the other one.
        """
        if level != self.options.sleep_level:
            raise CkptcheckError(f"this SGLang was started to sleep at level {self.options.sleep_level}, not {level}")
        self._call("sleep", tags=None)

    def scheduler_pids(self) -> tuple[int, ...]:
        """Return the process id of every rank's scheduler."""
        return tuple(pid for pid, _ in self._call_ranks("memory_bytes"))
