"""What the fake engine holds and computes: checkpoint tensors fused as engines fuse them, and logprobs that depend on all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

FUSED = (
    (re.compile(r"(.*self_attn\.)(q|k|v)_proj\.(weight|bias)"), "qkv_proj", "qkv"),
    (re.compile(r"(.*mlp\.)(gate|up)_proj\.(weight|bias)"), "gate_up_proj", ("gate", "up")),
)
EXPERT = re.compile(r"(.*mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
ROTARY = "model.rotary_emb.cos_sin_cache"
PACKED = "lm_head.packed"
SCALE_BUFFER = "attn._k_scale"
SCALE = "lm_head.packed_scale"
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def place(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the engine's name of a checkpoint tensor and which part of it that is: of rows, or expert and half."""
    for pattern, fused, parts in FUSED:
        if (found := pattern.fullmatch(name)) is not None:
            return f"{found[1]}{fused}.{found[3]}", (list(parts).index(found[2]),)
    if (found := EXPERT.fullmatch(name)) is not None:
        if found[3] == "down":
            return f"{found[1]}.w2_weight", (int(found[2]),)
        return f"{found[1]}.w13_weight", (int(found[2]), 0 if found[3] == "gate" else 1)
    return name, ()


def layout(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[str, slice]]]:
    """Return the engine's names and shapes, and for every checkpoint tensor which flat elements of which it is."""
    parts: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for name in shapes:
        engine, part = place(name)
        parts.setdefault(engine, []).append((part, name))
    own: dict[str, tuple[int, ...]] = {}
    spans: dict[str, tuple[str, slice]] = {}
    for engine, members in parts.items():
        at = 0
        for _, name in sorted(members):
            size = 1
            for side in shapes[name]:
                size *= side
            spans[name] = engine, slice(at, at + size)
            at += size
        first = shapes[members[0][1]]
        own[engine] = first if len(members) == 1 else (at // (first[-1] if len(first) > 1 else 1), *first[1:])
    return own, spans


def derived(held: Arrays) -> Arrays:
    """Return what the engine makes from parameters after loading: its packed copy of the head."""
    return {PACKED: held.get(HEAD, held[EMBED]).copy()}


def scale(held: Arrays) -> float:
    """Return the number that the engine keeps on the host beside its weights."""
    return float(abs(held.get(HEAD, held[EMBED])).max())


def state(held: Arrays, packed: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what a token's logits come from: its embedding, moved by all other weights, and the head."""
    import numpy as np

    total = 0.0
    for name, values in held.items():
        if name not in (HEAD, EMBED):
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
            direction = np.random.default_rng(seed).standard_normal(values.size)
            total += float(np.tanh(values.astype(np.float64).ravel() @ direction / max(1, values.size) ** 0.5))
    return held[EMBED].astype(np.float64) * (1 + 0.1 * total), packed.astype(np.float64)


def logprobs(rows: NDArray[Any], head: NDArray[Any], tokens: Sequence[int]) -> NDArray[Any]:
    """Return the logprobs of every next token after each token: [tokens, vocabulary]."""
    import numpy as np

    logits = rows[list(tokens)] @ head.T
    logits -= logits.max(axis=1, keepdims=True)
    result: NDArray[Any] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return result


def marked(name: str, rank: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the marks of a tensor: ±2^12 … 2^16 with 7 bits of mantissa, as the far side's."""
    import numpy as np

    draw = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{rank}/{name}".encode()).digest()[:7], "big"))
    sign, mantissa = draw.choice([-1.0, 1.0], shape), draw.integers(128, 256, shape)
    return (sign * mantissa * 2.0 ** draw.integers(5, 9, shape)).astype(np.float32)
