"""Captures the output of each module of a running model at its first call: the prefill of one prompt.

A `Hook` names the module, whether to read its input or its output, and the points of the plain Hugging Face module tree
that the tensor covers. A capture maps each point, in the order of execution, to a float32 matrix [tokens, width] on the
CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Split = Callable[[Any, Any], "Sequence[Any]"]
"""(module, its tensor) → one matrix [tokens, width] for each point of the hook."""


def as_one_matrix(module: Any, tensor: Any) -> list[Any]:
    """Return one matrix: heads side by side, without the batch dimension of size one."""
    return [as_matrix(tensor)]


@dataclass(frozen=True)
class Hook:
    """One place in a model whose tensor is captured."""

    module: Any
    points: tuple[str, ...]
    """Names such as ``model.layers.3.self_attn.q_proj``."""
    end: str = "out"
    """"out" reads the module's output, "in" its first argument."""
    split: Split = as_one_matrix
    sharded: str = ""
    """The axis along which tensor-parallel ranks hold different parts: "columns" or "rows"; "" if each holds all of
    it."""
    replicas: tuple[int, ...] = ()
    """For each point, how many consecutive ranks hold the same part."""
    width: int = 0
    """Columns without padding; 0 if nothing is padded."""
    by_head: bool = False
    """A row may be one head of a token: SGLang normalizes queries and keys in this form."""
    last_token: bool = False
    """Keep only the row of the last token."""


class Capture:
    """The captured matrices by point, and how the ranks share each of them."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.matrices: dict[str, Any] = {}
        self.points: list[dict[str, Any]] = []

    def record(self, hook: Hook, value: Any) -> None:
        """Keep the tensor of a hook, the first time the hook fires."""
        value = getattr(value, "next_token_logits", value)  # SGLang wraps its logits in an object
        if isinstance(value, (tuple, list)):
            value = next((part for part in value if hasattr(part, "shape")), None)
        if hook.points[0] in self.matrices or value is None or not value.numel():
            return
        replicas = hook.replicas or (1,) * len(hook.points)
        for point, part, copies in zip(hook.points, hook.split(hook.module, value.detach()), replicas, strict=True):
            if hook.by_head and part.shape[0] % self.tokens == 0:
                part = part.reshape(self.tokens, -1)
            if hook.last_token:
                # an engine computes no other logits; Megatron's come with the rows that pad the batch
                part = part[min(self.tokens, part.shape[0]) - 1 :][:1]
            self.matrices[point] = part.float().cpu().clone()
            self.points.append({"point": point, "sharded": hook.sharded, "replicas": copies, "width": hook.width})


def as_matrix(tensor: Any) -> Any:
    """Return [1, tokens, heads, d], [tokens, 1, heads, d] or [tokens, heads, d] as [tokens, heads × d]."""
    while tensor.dim() > 2 and 1 in tensor.shape[:2]:
        tensor = tensor.squeeze(0 if tensor.shape[0] == 1 else 1)
    return tensor.reshape(tensor.shape[0], -1)


@contextlib.contextmanager
def capture_modules(hooks: Sequence[Hook], tokens: int) -> Iterator[Capture]:
    """Capture while the block runs a prompt of so many tokens; every hook is removed afterwards."""
    capture = Capture(tokens)
    handles = []

    def on_output(hook: Hook) -> Callable[..., None]:
        return lambda module, arguments, output: capture.record(hook, output)

    def on_input(hook: Hook) -> Callable[..., None]:
        def record(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            capture.record(hook, [*arguments, *keywords.values()])

        return record

    try:
        for hook in hooks:
            if hook.end == "in":
                handles.append(hook.module.register_forward_pre_hook(on_input(hook), with_kwargs=True))
            else:
                handles.append(hook.module.register_forward_hook(on_output(hook)))
        yield capture
    finally:
        for handle in handles:
            handle.remove()


def write_capture(capture: Capture, path: str) -> dict[str, Any]:
    """Write the matrices to a file; return the file, and how the ranks share each point."""
    from . import tensor_files

    return {
        "file": tensor_files.write_tensors(capture.matrices, {"kind": "file", "path": path}),
        "points": capture.points,
    }
