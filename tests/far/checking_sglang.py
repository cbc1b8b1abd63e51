"""SGLang's host, with SGLang's own weight checker made to compare on a CPU, where it asks for CUDA by habit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ckptcheck_far import sglang_engine

FAR = str(Path(__file__).parent)


def register() -> None:
    """Leave tensors where they are. A plugin of every process of SGLang."""
    import torch

    def stay(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    torch.Tensor.cuda = stay


sys.path.append(FAR)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), FAR)))
sglang_engine.PLUGINS["stay"] = f"{Path(__file__).stem}:register"
VERBS = sglang_engine.VERBS
