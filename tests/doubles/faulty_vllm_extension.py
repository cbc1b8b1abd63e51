"""ckptcheck's extension of vLLM's worker, with a fault. vLLM imports it in each worker."""

from __future__ import annotations

import unittest.mock

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

    def ckptcheck_sleep_as_on_a_gpu(self, level: int, forgets: bool) -> None:
        """Run sleep and wake of vLLM's GPU worker over memory that is lost meanwhile. forgets: scales are 1.0 afterwards."""
        import torch
        from vllm.v1.worker.gpu_worker import Worker

        model = self.model_runner.get_model()

        class LosingBackend:
            """Stands in for cumem: level 1 brings weights back from the host, level 2 loses all memory of the device."""

            def suspend(self, level: int) -> None:
                for tensor in (*model.parameters(), *model.buffers()) if level == 2 else ():
                    tensor.data.zero_()

            def resume(self, tags: list[str] | None) -> None:
                pass

        with unittest.mock.patch.multiple(
            torch.accelerator, synchronize=lambda *_: None, get_memory_info=lambda *_: (0, 0)
        ):
            self._sleep_mode_backend = LosingBackend()
            Worker.sleep(self, level)
            Worker.wake_up(self)
        for module in model.modules() if forgets else ():
            if hasattr(module, "_k_scale_float"):
                module._k_scale.fill_(1.0)
                module._k_scale_float = 1.0
