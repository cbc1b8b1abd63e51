"""Every fault of the matrix: what it does to an export, and the causes that may be named for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.compare.diagnosis.sharded import (  # fmt: skip
    EXPERTS,
    HEAD_DIM,
    LAYERS,
    UNSIGNED,
    Exporter,
    Layout,
    Weights,
    hf_weights,
    shards,
    to_bits,
    to_megatron,
    to_numbers,
)

SIGN = {"F32": 1 << 31, "BF16": 1 << 15, "F16": 1 << 15}


@dataclass(frozen=True)
class Sync:
    """What a fault works on: the weights that were meant, those of the version before, the ranks, and the model's layout."""

    layout: Layout
    new: Weights
    old: Weights
    ranks: dict[tuple[int, int, int], Weights]

    @classmethod
    def of(cls, layout: Layout, seed: int = 0) -> Sync:
        """Make random weights and cut them. The version before differs in every element of note."""
        new = hf_weights(layout, 2 * seed)
        return cls(layout, new, hf_weights(layout, 2 * seed + 1), shards(to_megatron(new, layout), layout))

    def export(self, **wrong: object) -> Weights:
        """Run the exporter; with nothing wrong it gives what was meant."""
        return Exporter(self.layout, **wrong).export(self.ranks)  # type: ignore[arg-type]


Apply = Callable[[Sync], Weights]


@dataclass(frozen=True)
class Fault:
    """causes: the code that has to come first, and what else may be named beside it. stale: the previous version is known."""

    name: str
    causes: tuple[str, ...]
    apply: Apply
    stale: bool = False


def on(pattern: str, change: Callable[[np.ndarray, Sync], np.ndarray]) -> Apply:
    """Change the tensors of an export whose names match."""

    def apply(sync: Sync) -> Weights:
        return {
            name: change(tensor, sync) if re.search(pattern, name) else tensor for name, tensor in sync.export().items()
        }

    return apply


def numbers(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, Sync], np.ndarray]:
    """A change of numbers, rounded to the dtype afterwards."""
    return lambda tensor, sync: to_bits(sync.layout.dtype, change(to_numbers(sync.layout.dtype, tensor)))


def _absent(sync: Sync, pattern: str) -> Weights:
    return {name: tensor for name, tensor in sync.export().items() if not re.search(pattern, name)}


def _old(sync: Sync, pattern: str) -> Weights:
    return {name: sync.old[name] if re.search(pattern, name) else t for name, t in sync.export().items()}


def _half_old(sync: Sync, pattern: str) -> Weights:
    found = sync.export()
    for name in found:
        if re.search(pattern, name):
            half = len(found[name]) // 2
            found[name] = np.concatenate([found[name][:half], sync.old[name][half:]])
    return found


def _refit(sync: Sync, **wrong: object) -> Weights:
    """What was not written keeps the previous version."""
    return sync.old | sync.export(**wrong)


def _garbage(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    size = UNSIGNED[sync.layout.dtype]
    return np.random.default_rng(tensor.size).integers(0, np.iinfo(size).max, tensor.shape, size, endpoint=True)


def _noise(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    random = np.random.default_rng(tensor.size)
    return to_bits(sync.layout.dtype, random.normal(0, 0.02, tensor.shape))


def _flat_transposed(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    return np.ascontiguousarray(tensor.T).reshape(tensor.shape)


def _rope(tensor: np.ndarray, sync: Sync, *, to_pairs: bool) -> np.ndarray:
    heads = tensor.reshape(-1, HEAD_DIM, *tensor.shape[1:])
    shape = (len(heads), 2, HEAD_DIM // 2) if to_pairs else (len(heads), HEAD_DIM // 2, 2)
    return np.ascontiguousarray(heads.reshape(*shape, *tensor.shape[1:]).swapaxes(1, 2)).reshape(tensor.shape)


def _partly(tensor: np.ndarray, sync: Sync, value: float) -> np.ndarray:
    found = tensor.copy()
    found[len(found) // 4 : len(found) // 2] = to_bits(sync.layout.dtype, np.array([value], np.float32))[0]
    return found


def _bucket(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    flat = tensor.reshape(-1).copy()
    flat[len(flat) // 3 :] = 0
    return flat.reshape(tensor.shape)


def _column_block(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    found = tensor.copy()
    found[:, 8:16] = 0
    return found


def _one_bit(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    found = tensor.copy()
    found[-1, -1] ^= 64
    return found


def _through(dtype: str) -> Callable[[np.ndarray, Sync], np.ndarray]:
    """A round trip, by ml_dtypes-free arithmetic: significand cut to so many digits, exponents of the format."""
    digits, lowest = {"BF16": (8, -133), "F16": (11, -24), "E4M3": (4, -9), "E5M2": (3, -16)}[dtype]

    def change(values: np.ndarray) -> np.ndarray:
        wide = values.astype(np.float64)
        exponent = np.floor(np.log2(np.where(wide == 0, 1, np.abs(wide))))
        step = 2.0 ** np.maximum(exponent - digits + 1, lowest)
        return (np.rint(wide / step) * step).astype(np.float32)

    return numbers(change)


def _int4(group: int, top: int = 7) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        grouped = values.reshape(len(values), -1, min(group, values.shape[1])).astype(np.float64)
        scale = np.abs(grouped).max(axis=2, keepdims=True) / top
        return (np.rint(grouped / scale) * scale).reshape(values.shape)

    return change


def _row_scales(values: np.ndarray) -> np.ndarray:
    return values * np.linspace(0.5, 2, len(values), dtype=np.float32)[:, None]


MATRIX = r"(proj|embed_tokens|lm_head)\.weight$"
ANY = r"\.(weight|bias)$"
IN_LAYER_2 = r"layers\.2\."
FAULTS = (
    Fault("missing", ("missing",), lambda sync: _absent(sync, IN_LAYER_2)),
    Fault("uninitialised", ("uninitialised",), on(MATRIX, _garbage)),
    Fault("all zero", ("zero",), on(r"(q_proj|down_proj|mlp\.gate)\.weight$", lambda tensor, _: tensor * 0)),
    Fault("NaN", ("nan",), on(r"o_proj|layernorm", numbers(lambda values: values * np.float32(np.nan)))),
    Fault("constant", ("constant",), on(r"layernorm", numbers(np.ones_like))),
    Fault("stale", ("stale",), lambda sync: _old(sync, r"layers\.[01]\."), stale=True),
    Fault("pipeline offset, names missing", ("layer", "missing"), lambda sync: sync.export(layers=lambda _, at: at)),
    Fault("pipeline offset, rest stale", ("layer", "stale"), lambda sync: _refit(sync, layers=lambda _, at: at), stale=True),
    Fault("layers equal the stage before", ("layer",), lambda sync: _stage_twice(sync)),
    Fault("layers in another order", ("layer",), lambda sync: sync.export(layers=lambda pp, at: _around(sync, pp, at))),
    Fault("expert offset, names missing", ("expert", "missing"), lambda sync: sync.export(experts=lambda _, at: at)),
    Fault("experts permuted", ("expert",), lambda sync: sync.export(experts=lambda ep, at: _swapped(sync, ep, at))),
    Fault("experts all the same", ("expert",), lambda sync: _one_expert(sync)),
    Fault("transposed (square)", ("transposed",), on(r"o_proj\.weight$", lambda tensor, _: np.ascontiguousarray(tensor.T))),
    Fault("transposed (same shape kept)", ("transposed",), on(MATRIX, _flat_transposed)),
    Fault("QKV interleave not undone", ("qkv-interleave",), lambda sync: sync.export(qkv="skip")),
    Fault("QKV interleave undone twice", ("qkv-interleave",), lambda sync: sync.export(qkv="twice")),
    Fault("gate and up swapped", ("gate-up-swapped",), lambda sync: sync.export(fc1="swapped")),
    Fault("TP: fc1 concatenated plainly", ("tp-concatenated",), lambda sync: sync.export(fc1="plain")),
    Fault("TP: ranks in another order", ("tp-order",), lambda sync: sync.export(tp=list(range(sync.layout.tp))[::-1])),
    Fault("TP: shard duplicated", ("tp-duplicated",), lambda sync: sync.export(tp=[0] * sync.layout.tp)),
    Fault("rope: halves as pairs", ("rope-permuted",), on(r"[qk]_proj", lambda x, sync: _rope(x, sync, to_pairs=True))),
    Fault("rope: pairs as halves", ("rope-permuted",), on(r"[qk]_proj", lambda x, sync: _rope(x, sync, to_pairs=False))),
    Fault("rows shifted", ("rows-shifted",), on(r"embed_tokens", lambda x, _: np.concatenate([x[:40], x[41:], x[:1] * 0]))),
    Fault("row inserted", ("rows-shifted",), on(r"lm_head", lambda x, _: np.concatenate([x[:7], x[3:4], x[7:-1]]))),
    Fault("padding not cut off", ("vocabulary-padding",), on(r"lm_head|embed", lambda x, _: np.concatenate([x, x[:32] * 0]))),
    Fault("too many rows cut off", ("vocabulary-padding",), on(r"lm_head|embed", lambda x, _: x[:-8])),
    Fault("norm without its 1", ("norm-offset",), on(r"norm", numbers(lambda values: values - 1))),
    Fault("norm with 1 twice", ("norm-offset",), on(r"norm", numbers(lambda values: values + 1))),
    Fault("scaled by 1/8", ("scaled",), on(r"o_proj\.weight|down_proj", numbers(lambda values: values / 8))),
    Fault("scaled by sqrt(hidden)", ("scaled",), on(r"embed", numbers(lambda values: values * np.float32(32**0.5)))),
    Fault("scales of other rows", ("scales",), on(r"o_proj\.weight|gate_proj", numbers(_row_scales))),
    Fault("round trip bf16", ("round-trip",), on(MATRIX, _through("BF16"))),
    Fault("round trip f16", ("round-trip",), on(MATRIX, _through("F16"))),
    Fault("round trip e4m3", ("round-trip",), on(MATRIX, _through("E4M3"))),
    Fault("round trip e5m2", ("round-trip",), on(MATRIX, _through("E5M2"))),
    Fault("quantized to int4", ("quantized",), on(r"o_proj\.weight|gate_proj|up_proj", numbers(_int4(16)))),
    Fault("partly zero", ("partial-write",), on(ANY, lambda tensor, sync: _partly(tensor, sync, 0))),
    Fault("partly NaN", ("partial-write",), on(MATRIX, lambda tensor, sync: _partly(tensor, sync, float("nan")))),
    Fault("rest of a bucket zero", ("partial-write",), on(MATRIX, _bucket)),
    Fault("block of columns zero", ("partial-write",), on(r"(q|o)_proj\.weight", _column_block)),
    Fault("half stale", ("partial-write",), lambda sync: _half_old(sync, MATRIX), stale=True),
    Fault("sign", ("sign",), on(ANY, lambda x, sync: x ^ x.dtype.type(SIGN[sync.layout.dtype]))),
    Fault("byte order", ("byte-order",), on(MATRIX, lambda tensor, _: tensor.byteswap())),
    Fault("one bit", ("bit-flip",), on(r"layers\.1.*o_proj", _one_bit)),
)  # fmt: skip
NOISE = Fault("noise", ("unknown",), on(MATRIX, _noise))
"""What nothing explains."""


def _around(sync: Sync, pp: int, at: int) -> int:
    """Stages numbered from the last."""
    return (sync.layout.pp - 1 - pp) * (LAYERS // sync.layout.pp) + at


def _swapped(sync: Sync, ep: int, at: int) -> int:
    return (sync.layout.ep - 1 - ep) * (EXPERTS // sync.layout.ep) + at


def _stage_twice(sync: Sync) -> Weights:
    """The stages after the first hold the first one's layers."""
    found, depth = sync.export(), LAYERS // sync.layout.pp
    for name in list(found):
        if match := re.match(r"model\.layers\.(\d+)\.(.*)", name):
            found[name] = sync.new[f"model.layers.{int(match[1]) % depth}.{match[2]}"]
    return found


def _one_expert(sync: Sync) -> Weights:
    """Each expert overwrote the same name, and the converter spread the last one."""
    found = sync.export()
    last = EXPERTS // sync.layout.ep - 1
    for name in list(found):
        if sync.layout.ep > 1 and ".experts." in name:
            found[name] = sync.new[re.sub(r"experts\.\d+", f"experts.{last}", name)]
    return found
