"""ckptcheck's extension of vLLM's worker, with a fault. vLLM imports it in each worker."""

from __future__ import annotations

from ckptcheck_worker.vllm_worker import Extension
from tensor_faults import flip_bit


class FaultyExtension(Extension):
    """Adds methods for `RemoteEngine._call_ranks`."""

    def ckptcheck_flip_bit(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a tensor on this rank."""
        flip_bit(self.ckptcheck_tensors(), name, index, bit)

    def ckptcheck_set_number(self, module: str, name: str, value: float) -> None:
        """Set a number that a module keeps on the host."""
        setattr(self.model_runner.get_model().get_submodule(module), name, value)

    def ckptcheck_see_image(self) -> None:
        """Keep what a vision tower would make of an image, where vLLM does."""
        import torch

        self.model_runner.encoder_cache["image"] = torch.zeros(1)

    def ckptcheck_remembered_images(self) -> list[str]:
        """Return the images whose outputs this rank would serve again."""
        return list(self.model_runner.encoder_cache)
