"""Keeps what modules of a running model give out, the first time that they are called: a prompt's prefill.

A tap says which module is listened to, on which end, and which points of the plain Hugging Face form its tensor is made of.
What comes out of a capture is, point by point in the order of execution, a float32 matrix [tokens, width] on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Cut = Callable[[Any, Any], "Sequence[Any]"]
"""(module, its tensor) → a matrix [tokens, width] for each point of the tap."""


def flat(module: Any, tensor: Any) -> list[Any]:
    """Return one matrix: heads side by side, the batch of one left out."""
    return [matrix(tensor)]


@dataclass(frozen=True)
class Tap:
    """points: names, ``model.layers.3.self_attn.q_proj``. end: "out" or "in" (its first argument).

    shared: along which axis tensor-parallel ranks have a part each: "columns", "rows" or "" where each has the whole.
    copies: how many ranks in a row have the same part. width: columns without padding, 0 where there is none. last: only
    the last token's row is wanted. heads: a row may be one head of a token, as where SGLang norms queries and keys.
    """

    module: Any
    points: tuple[str, ...]
    end: str = "out"
    cut: Cut = flat
    shared: str = ""
    copies: tuple[int, ...] = ()
    width: int = 0
    heads: bool = False
    last: bool = False


class Captured:
    """What was kept: point → matrix, and how ranks share it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.matrices: dict[str, Any] = {}
        self.about: list[dict[str, Any]] = []

    def keep(self, tap: Tap, value: Any) -> None:
        """Keep what a tap gives, the first time."""
        value = getattr(value, "next_token_logits", value)  # SGLang's logits come with other things
        if isinstance(value, (tuple, list)):
            value = next((part for part in value if hasattr(part, "shape")), None)
        if tap.points[0] in self.matrices or value is None or not value.numel():
            return
        copies = tap.copies or (1,) * len(tap.points)
        for point, part, times in zip(tap.points, tap.cut(tap.module, value.detach()), copies, strict=True):
            if tap.heads and part.shape[0] % self.tokens == 0:
                part = part.reshape(self.tokens, -1)
            if tap.last:  # an engine computes no logits but these; Megatron's come with the rows that fill up the batch
                part = part[min(self.tokens, part.shape[0]) - 1 :][:1]
            self.matrices[point] = part.float().cpu().clone()
            self.about.append({"point": point, "shared": tap.shared, "copies": times, "width": tap.width})


def matrix(tensor: Any) -> Any:
    """Return [1, tokens, heads, d], [tokens, 1, heads, d] or [tokens, heads, d] as [tokens, heads × d]."""
    while tensor.dim() > 2 and 1 in tensor.shape[:2]:
        tensor = tensor.squeeze(0 if tensor.shape[0] == 1 else 1)
    return tensor.reshape(tensor.shape[0], -1)


@contextlib.contextmanager
def listening(taps: Sequence[Tap], tokens: int) -> Iterator[Captured]:
    """Listen while the body runs a prompt of so many tokens; no hook stays."""
    captured = Captured(tokens)
    handles = []

    def leaving(tap: Tap) -> Callable[..., None]:
        return lambda module, arguments, output: captured.keep(tap, output)

    def entering(tap: Tap) -> Callable[..., None]:
        def hook(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            captured.keep(tap, [*arguments, *named.values()])

        return hook

    try:
        for tap in taps:
            if tap.end == "in":
                handles.append(tap.module.register_forward_pre_hook(entering(tap), with_kwargs=True))
            else:
                handles.append(tap.module.register_forward_hook(leaving(tap)))
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def put(captured: Captured, path: str) -> dict[str, Any]:
    """Write what was kept to a file; return where it is and what is to be known of each point."""
    from . import plane

    return {"parcel": plane.put(captured.matrices, {"plane": "file", "path": path}), "about": captured.about}
