"""ckptcheck's extension of vLLM's worker, with a fault. vLLM imports it in each worker."""

from __future__ import annotations

from ckptcheck_worker.vllm_worker import Extension
from tensor_faults import flip_bit


class FaultyExtension(Extension):
    """Adds methods for `RemoteEngine._call_ranks`."""

    def ckptcheck_flip_bit(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a tensor on this rank."""
        flip_bit(self._ckptcheck_tensors(), name, index, bit)

    def ckptcheck_set_number(self, module: str, name: str, value: float) -> None:
        """Set a number that a module keeps on the host."""
        setattr(self.model_runner.get_model().get_submodule(module), name, value)
