"""Assembles the activations of one prompt from the files that all ranks wrote (see ckptcheck_worker/capture.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

Activations = Mapping[str, "np.ndarray[Any, np.dtype[np.float32]]"]
"""Point → matrix [tokens, width], in the order of execution.

A point is named after the module of the plain Hugging Face model that puts it out
(``model.layers.3.self_attn.q_proj``). Two points are inputs: ``self_attn.core`` is the input of o_proj, ``mlp.act`` the
input of down_proj.
"""


@runtime_checkable
class ActivationSource(Protocol):
    """A trainer or an engine that can capture the outputs of its modules."""

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return the output of every module for a prompt, joined over all ranks. folder: for temporary files."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


def assemble_activations(captures: Sequence[Mapping[str, Any]], tokens: int) -> Activations:
    """Read the files of all ranks, join the ranks' parts, and remove the files.

    captures: for each rank, the file and how the ranks share each point. tokens: length of the prompt; further rows pad the batch.
    """
    import numpy as np
    from safetensors.numpy import load_file

    parts: dict[str, list[Any]] = {}
    layouts: dict[str, Mapping[str, Any]] = {}
    for capture in captures:
        path = Path(capture["file"]["path"])
        matrices = load_file(path)
        path.unlink()
        for layout in capture["points"]:
            parts.setdefault(layout["point"], []).append(matrices[layout["point"]])
            layouts.setdefault(layout["point"], layout)
    activations = {}
    for point, shards in parts.items():
        layout = layouts[point]
        axis = {"columns": 1, "rows": 0}.get(layout["sharded"])
        matrix = shards[0] if axis is None else np.concatenate(shards[:: layout["replicas"]], axis)
        activations[point] = matrix[:tokens, : layout["width"] or None]
    return activations
