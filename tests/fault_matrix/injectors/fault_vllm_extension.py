"""ckptcheck's extension of vLLM's worker, with a door for faults. vLLM imports it in each worker."""

from __future__ import annotations

from typing import Any

import dispatch
from ckptcheck_worker.vllm_worker import Extension


class FaultExtension(Extension):
    """Adds methods for `RemoteEngine._call_ranks`."""

    def ckptcheck_inject(self, request: dict[str, Any]) -> None:
        """Put a fault into this rank."""
        dispatch.inject(self.model_runner.get_model(), self.rank, request)

    def ckptcheck_heal(self, forget: bool) -> None:
        """Take faults out of this rank."""
        dispatch.heal(forget)
