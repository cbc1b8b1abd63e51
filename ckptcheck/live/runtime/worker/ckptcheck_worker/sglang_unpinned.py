"""An SGLang plugin that lets LoRA run on a CPU, where SGLang 0.5.23 asks for pinned memory: torch needs a GPU for it.

Pinned memory only makes copies to a device faster. The plugin does nothing on a machine with an accelerator.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Keep host memory pageable although SGLang's LoRA wants it pinned."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.lora import layers
    from sglang.srt.lora.backend import torch_backend

    torch.Tensor.pin_memory = _stay
    for module in (layers, torch_backend):
        module.torch = _UnpinnedTorch(torch)


def _stay(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


class _UnpinnedTorch:
    """torch, whose functions that make tensors ignore pin_memory."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, *arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        """Return torch.tensor(...) in pageable memory."""
        return self._torch.tensor(*arguments, **options)

    def zeros(self, *arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        """Return torch.zeros(...) in pageable memory."""
        return self._torch.zeros(*arguments, **options)
