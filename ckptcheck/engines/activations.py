"""What the modules of a model gave out for one prompt, put together from all ranks (see ckptcheck_far/capture.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Activations = Mapping[str, "np.ndarray[Any, np.dtype[np.float32]]"]
"""Point → matrix [tokens, width], in the order of execution.

Points have the names of modules in the plain Hugging Face form (``model.layers.3.self_attn.q_proj``: what it gives out); two are
none of a module: ``self_attn.core`` is what goes into o_proj, ``mlp.act`` what goes into down_proj.
"""


def assembled(heard: Sequence[Mapping[str, Any]], tokens: int) -> Activations:
    """Put the ranks' files together and remove them.

    heard: of each rank, where its file is and how points are shared. tokens: of the prompt; rows after them fill up a batch.
    """
    import numpy as np
    from safetensors.numpy import load_file

    parts: dict[str, list[Any]] = {}
    about: dict[str, Mapping[str, Any]] = {}
    for each in heard:
        path = Path(each["parcel"]["path"])
        held = load_file(path)
        path.unlink()
        for told in each["about"]:
            parts.setdefault(told["point"], []).append(held[told["point"]])
            about.setdefault(told["point"], told)
    found = {}
    for point, matrices in parts.items():
        shared, copies = about[point]["shared"], about[point]["copies"]
        axis = {"columns": 1, "rows": 0}.get(shared)
        whole = matrices[0] if axis is None else np.concatenate(matrices[::copies], axis)
        found[point] = whole[:tokens, : about[point]["width"] or None]
    return found
