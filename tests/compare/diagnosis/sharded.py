"""A small numpy model of how Megatron cuts a transformer over ranks, and how an exporter puts it together again.

Each step of the exporter can be replaced by a wrong one. Written from Megatron-LM's layout (linear_qkv per KV group,
linear_fc1 as [gate; up] on each rank, layer and expert numbers local to the rank), not from ckptcheck's own code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]
LAYERS, HIDDEN, HEAD_DIM, WIDTH, VOCABULARY, EXPERTS, EXPERT_WIDTH = 4, 32, 8, 48, 96, 4, 16
UNSIGNED = {"F32": np.uint32, "BF16": np.uint16, "F16": np.uint16}


@dataclass(frozen=True)
class Layout:
    """A model and the ranks that it is cut over."""

    moe: bool = False
    tp: int = 1
    pp: int = 1
    ep: int = 1
    heads: int = 4
    kv_heads: int = 2
    dtype: str = "BF16"

    def __str__(self) -> str:
        attention = "" if self.kv_heads == 2 else f" kv{self.kv_heads}"
        return f"{'moe' if self.moe else 'dense'} tp{self.tp} pp{self.pp} ep{self.ep}{attention} {self.dtype.lower()}"


def to_bits(dtype: str, values: np.ndarray) -> np.ndarray:
    """Round float32 values to patterns."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return values.view(np.uint32)
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def to_numbers(dtype: str, bits: np.ndarray) -> np.ndarray:
    """Patterns to float32."""
    if dtype == "F32":
        return bits.view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def hf_weights(layout: Layout, seed: int = 0) -> Weights:
    """Random weights under Hugging Face's names, as patterns: normal with std 0.02, norms around 1, biases on Q, K, V."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, heads in (("q", layout.heads), ("k", layout.kv_heads), ("v", layout.kv_heads)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
            shapes[f"{at}self_attn.{name}_proj.bias"] = (heads * HEAD_DIM,)
        shapes[f"{at}self_attn.o_proj.weight"] = (HIDDEN, layout.heads * HEAD_DIM)
        shapes[f"{at}input_layernorm.weight"] = shapes[f"{at}post_attention_layernorm.weight"] = (HIDDEN,)
        blocks = [(f"{at}mlp.", WIDTH)]
        if layout.moe:
            shapes[f"{at}mlp.gate.weight"] = (EXPERTS, HIDDEN)
            blocks = [(f"{at}mlp.experts.{expert}.", EXPERT_WIDTH) for expert in range(EXPERTS)]
        for block, width in blocks:
            shapes[f"{block}gate_proj.weight"] = shapes[f"{block}up_proj.weight"] = (width, HIDDEN)
            shapes[f"{block}down_proj.weight"] = (HIDDEN, width)
    return {
        name: to_bits(
            layout.dtype,
            random.normal(0, 0.02, shape) + (1 if "norm" in name else 0) if len(shape) > 1 or "norm" not in name
            else random.normal(1, 0.2, shape),
        )
        for name, shape in shapes.items()
    }  # fmt: skip


def to_megatron(hf: Weights, layout: Layout) -> Weights:
    """Whole tensors under Megatron's names, layers and experts numbered globally."""
    per_group = layout.heads // layout.kv_heads
    found = {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
        "output_layer.weight": hf["lm_head.weight"],
    }
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        for kind in ("weight", "bias"):
            q, k, v = (hf[f"{at}self_attn.{name}_proj.{kind}"] for name in "qkv")
            rest = q.shape[1:]
            groups = [
                np.concatenate([a, b, c])
                for a, b, c in zip(
                    q.reshape(layout.kv_heads, per_group * HEAD_DIM, *rest),
                    k.reshape(layout.kv_heads, HEAD_DIM, *rest),
                    v.reshape(layout.kv_heads, HEAD_DIM, *rest),
                    strict=True,
                )
            ]
            found[f"{to}self_attention.linear_qkv.{kind}"] = np.concatenate(groups)
        found[f"{to}self_attention.linear_proj.weight"] = hf[f"{at}self_attn.o_proj.weight"]
        found[f"{to}input_layernorm.weight"] = hf[f"{at}input_layernorm.weight"]
        found[f"{to}pre_mlp_layernorm.weight"] = hf[f"{at}post_attention_layernorm.weight"]
        if layout.moe:
            found[f"{to}mlp.router.weight"] = hf[f"{at}mlp.gate.weight"]
        for block, target in _blocks(layout):
            gate, up = hf[f"{at}{block}gate_proj.weight"], hf[f"{at}{block}up_proj.weight"]
            found[f"{to}{target}linear_fc1.weight"] = np.concatenate([gate, up])
            found[f"{to}{target}linear_fc2.weight"] = hf[f"{at}{block}down_proj.weight"]
    return found


def _blocks(layout: Layout) -> list[tuple[str, str]]:
    if not layout.moe:
        return [("mlp.", "mlp.")]
    return [(f"mlp.experts.{expert}.", f"mlp.experts.local_experts.{expert}.") for expert in range(EXPERTS)]


def cut_of(name: str) -> str | int | None:
    """How a tensor is cut over tensor-parallel ranks: an axis, "glu", or None where each rank has it whole."""
    if name.endswith(("word_embeddings.weight", "output_layer.weight")) or ".linear_qkv." in name:
        return 0
    if ".linear_fc1." in name:
        return "glu"
    return 1 if ".linear_proj." in name or ".linear_fc2." in name else None


def shards(whole: Weights, layout: Layout) -> dict[tuple[int, int, int], Weights]:
    """(tp, pp, ep) → what that rank holds, layers and experts numbered from 0 on each rank."""
    ranks: dict[tuple[int, int, int], Weights] = {}
    depth, width = LAYERS // layout.pp, EXPERTS // layout.ep
    for name, tensor in whole.items():
        words = name.split(".")
        layer = int(words[2]) if name.startswith("decoder.layers.") else None
        expert = int(words[words.index("local_experts") + 1]) if "local_experts" in words else None
        for pp in range(layout.pp):
            if layer is not None and layer // depth != pp:
                continue
            if layer is None and pp != (0 if name.startswith("embedding") else layout.pp - 1):
                continue
            for ep in range(layout.ep):
                if expert is not None and expert // width != ep:
                    continue
                local = list(words)
                if layer is not None:
                    local[2] = str(layer % depth)
                if expert is not None:
                    local[words.index("local_experts") + 1] = str(expert % width)
                for tp in range(layout.tp):
                    ranks.setdefault((tp, pp, ep), {})[".".join(local)] = _shard(tensor, cut_of(name), tp, layout.tp)
    return ranks


def _shard(tensor: np.ndarray, cut: str | int | None, rank: int, ranks: int) -> np.ndarray:
    if cut is None or ranks == 1:
        return tensor
    if cut == "glu":
        gate, up = np.split(tensor, 2)
        return np.concatenate([np.split(gate, ranks)[rank], np.split(up, ranks)[rank]])
    return np.split(tensor, ranks, axis=int(cut))[rank]


@dataclass
class Exporter:
    """Puts ranks together under Hugging Face's names. What is given differs from the right way.

    qkv: undo, skip, twice. fc1: halves, plain, swapped. tp: which rank's shard stands where. layers, experts: the number
    that a stage's or rank's local number becomes, None for the right one.
    """

    layout: Layout
    qkv: str = "undo"
    fc1: str = "halves"
    tp: list[int] = field(default_factory=list)
    layers: Any = None
    experts: Any = None

    def export(self, ranks: dict[tuple[int, int, int], Weights]) -> Weights:
        """Return what a checkpoint would hold; where two ranks write the same name the later one stays."""
        layout = self.layout
        depth, width = LAYERS // layout.pp, EXPERTS // layout.ep
        layer_of = self.layers or (lambda pp, local: pp * depth + local)
        expert_of = self.experts or (lambda ep, local: ep * width + local)
        order = self.tp or list(range(layout.tp))
        found: Weights = {}
        for pp in range(layout.pp):
            for ep in range(layout.ep):
                for name in ranks[0, pp, ep]:
                    whole = self._join([ranks[rank, pp, ep][name] for rank in order], cut_of(name))
                    words = name.split(".")
                    if name.startswith("decoder.layers."):
                        words[2] = str(layer_of(pp, int(words[2])))
                    if "local_experts" in words:
                        at = words.index("local_experts") + 1
                        words[at] = str(expert_of(ep, int(words[at])))
                    found |= self._names(".".join(words), whole)
        return found

    def _join(self, parts: list[np.ndarray], cut: str | int | None) -> np.ndarray:
        if cut is None:
            return parts[0]
        if cut != "glu" or self.fc1 == "plain":
            return np.concatenate(parts, axis=0 if cut == "glu" else int(cut))
        halves = [np.split(part, 2) for part in parts]
        return np.concatenate([gate for gate, _ in halves] + [up for _, up in halves])

    def _names(self, name: str, tensor: np.ndarray) -> Weights:
        outside = {
            "embedding.word_embeddings.weight": "model.embed_tokens.weight",
            "decoder.final_layernorm.weight": "model.norm.weight",
            "output_layer.weight": "lm_head.weight",
        }
        if name in outside:
            return {outside[name]: tensor}
        words = name.split(".")
        at, rest = f"model.layers.{words[2]}.", ".".join(words[3:])
        if ".linear_qkv." in name:
            q, k, v = self._split(tensor)
            return {f"{at}self_attn.{part}_proj.{words[-1]}": x for part, x in zip("qkv", (q, k, v), strict=True)}
        block = f"mlp.experts.{words[words.index('local_experts') + 1]}." if "local_experts" in words else "mlp."
        if rest.endswith("linear_fc1.weight"):
            gate, up = np.split(tensor, 2)
            if self.fc1 == "swapped":
                gate, up = up, gate
            return {f"{at}{block}gate_proj.weight": gate, f"{at}{block}up_proj.weight": up}
        if rest.endswith("linear_fc2.weight"):
            return {f"{at}{block}down_proj.weight": tensor}
        renamed = {
            "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
            "input_layernorm.weight": "input_layernorm.weight",
            "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
            "mlp.router.weight": "mlp.gate.weight",
        }
        return {at + renamed[rest]: tensor}

    def _split(self, fused: np.ndarray) -> list[np.ndarray]:
        layout = self.layout
        rows = [layout.heads * HEAD_DIM, layout.kv_heads * HEAD_DIM, layout.kv_heads * HEAD_DIM]
        cuts = np.cumsum(rows)[:2]
        if self.qkv == "skip":
            return np.split(fused, cuts)
        for _ in range(2 if self.qkv == "twice" else 1):
            groups = fused.reshape(layout.kv_heads, -1, *fused.shape[1:])
            per_group = [count // layout.kv_heads for count in rows]
            parts = np.split(groups, np.cumsum(per_group)[:2], axis=1)
            fused = np.concatenate([part.reshape(-1, *fused.shape[1:]) for part in parts])
        return np.split(fused, cuts)
