"""The SGLang worker with faults, and with SGLang's own weight checker usable on a CPU, where it asks for CUDA."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ckptcheck_worker import sglang_engine

DOUBLES = str(Path(__file__).parent)


def register() -> None:
    """Leave tensors on the CPU, and add a fault to the methods of a rank. A plugin of every process of SGLang."""
    import torch
    from ckptcheck_worker import sglang_worker
    from tensor_faults import flip_bit

    def stay(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    def flip(view: sglang_worker.RankView, name: str, index: int, bit: int) -> None:
        flip_bit(view.ckptcheck_tensors(), name, index, bit)

    def see_image(view: sglang_worker.RankView) -> None:
        from sglang.srt.managers import mm_schedule
        from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult

        assert mm_schedule.embedding_cache.set(7, EmbeddingResult(embedding=torch.zeros(1)))

    def remembered_images(view: sglang_worker.RankView) -> list[int]:
        from sglang.srt.managers import mm_schedule

        return [7] if mm_schedule.embedding_cache.has(7) else []

    torch.Tensor.cuda = stay
    for name, method in {"see_image": see_image, "remembered_images": remembered_images, "flip_bit": flip}.items():
        setattr(sglang_worker.RankView, f"ckptcheck_{name}", method)


sys.path.append(DOUBLES)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), DOUBLES)))
sglang_engine.PLUGINS["faults"] = f"{Path(__file__).stem}:register"
RPC_METHODS = sglang_engine.RPC_METHODS
