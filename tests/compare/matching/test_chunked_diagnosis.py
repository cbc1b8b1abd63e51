"""Tensors too large to be held whole: the same cause is named for them, and none that a part of them contradicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ckptcheck.compare.matching import chunked_diagnosis, difference_causes, smoothing
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
Tensors = dict[str, NDArray[np.float32]]
CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3,
"intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128}"""


def _model() -> Tensors:
    random = np.random.default_rng(0)
    shapes = {
        "self_attn.q_proj": (64, 64), "self_attn.k_proj": (16, 64), "self_attn.v_proj": (16, 64),
        "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
    }  # fmt: skip
    names = {f"model.layers.{layer}.{name}.weight": shape for layer in range(3) for name, shape in shapes.items()}
    names |= {"model.embed_tokens.weight": (128, 64), "lm_head.weight": (128, 64)}
    return {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in names.items()}


def _swapped(tensors: Tensors) -> None:
    for layer in range(3):
        gate, up = (f"model.layers.{layer}.mlp.{name}_proj.weight" for name in ("gate", "up"))
        tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _interleaved(tensors: Tensors) -> None:
    """Megatron's linear_qkv, two groups of four queries, a key and a value, cut as if it were [Q; K; V]."""
    for layer in range(3):
        names = [f"model.layers.{layer}.self_attn.{name}_proj.weight" for name in "qkv"]
        groups = [tensors[name].reshape(2, -1, 64) for name in names]
        rows = np.concatenate(groups, axis=1).reshape(-1, 64)
        tensors |= dict(zip(names, map(np.ascontiguousarray, np.split(rows, [64, 80])), strict=True))


def _offset(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".layers.1." in name]:
        tensors[name] = tensors[name.replace(".1.", ".0.")]


def _ranks(tensors: Tensors) -> None:
    """The columns of a row-parallel layer, its two ranks in the wrong order."""
    for name in [name for name in tensors if "down_proj" in name]:
        tensors[name] = np.ascontiguousarray(np.roll(tensors[name], 48, axis=1))


def _set(where: tuple[slice, slice], value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"][where] = value

    return change


def _scaled(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"] *= 8


def _rotated(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = np.roll(tensors["lm_head.weight"], -1, axis=0)


FAULTS: dict[str, Callable[[Tensors], None]] = {
    "gate and up are swapped": _swapped,
    "Q, K and V are still interleaved per KV group (Megatron's linear_qkv cut as if it were [Q; K; V])": _interleaved,
    "layer 1 equals layer 0: pipeline offset 1": _offset,
    "the shards of 2 tensor-parallel ranks are in the order 1, 0": _ranks,
    "rows 16-39 of 128 are zero, the rest is right": _set((slice(16, 40), slice(None)), 0),
    "columns 16-39 of 64 are zero, the rest is right": _set((slice(None), slice(16, 40)), 0),
    "every element is the constant 0.5": _set((slice(None), slice(None)), 0.5),
    "multiplied by 8": _scaled,
    "rows are rotated by 1": _rotated,
}


def _findings(tmp_path: Path, theirs: Tensors) -> list[tuple[str, str]]:
    paths = []
    for number, tensors in enumerate((_model(), theirs)):
        paths.append(tmp_path / str(number))
        paths[-1].mkdir(exist_ok=True)
        (paths[-1] / "config.json").write_text(CONFIG)
        save_file(tensors, paths[-1] / "model.safetensors", {"format": "pt"})
    report = run_rules(Comparison(*(open_side(str(path)) for path in paths)), RULES)
    assert not report.crashed
    return [(finding.message, finding.hint or "") for finding in report.findings]


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but K and V is large, and is looked at in four to eight slabs."""
    monkeypatch.setattr(difference_causes, "LARGE_BYTES", 8000)
    monkeypatch.setattr(chunked_diagnosis, "SLAB_BYTES", 4096)
    monkeypatch.setattr(chunked_diagnosis, "READ_BYTES", 3000)
    monkeypatch.setattr(smoothing, "FIRST_ROWS", 8)
    monkeypatch.setattr(smoothing, "CHUNK_ELEMENTS", 1000)


@pytest.mark.parametrize("cause", FAULTS)
def test_the_same_cause_is_named_as_where_it_is_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, cause: str
) -> None:
    theirs = _model()
    FAULTS[cause](theirs)
    whole = _findings(tmp_path, theirs)
    assert cause in whole[0][0]
    request.getfixturevalue("few_bytes")
    held, real = [], difference_causes.TensorFiles.read_tensor
    monkeypatch.setattr(
        difference_causes.TensorFiles, "read_tensor", lambda *at: held.append(at[1].nbytes) or real(*at)
    )
    parts = _findings(tmp_path, theirs)
    if cause.startswith("layer"):  # told by shape
        assert all(f": {cause}; " in message for message, _ in parts)
    else:
        assert [message for message, _ in parts] == [message for message, _ in whole]
    assert any("in each of " in hint for _, hint in parts)
    assert max(held) < 8000, "no large tensor is read whole"


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.usefixtures("few_bytes")
def test_a_cause_that_one_element_contradicts_is_not_named(tmp_path: Path, cause: str) -> None:
    """One element in the last slab, which no sample of another sees."""
    theirs = _model()
    FAULTS[cause](theirs)
    for name in theirs:
        theirs[name][-1, -1] += 0.25
        theirs[name][-1, -2] += 0.125
    named = [message for message, hint in _findings(tmp_path, theirs) if "too large" not in hint]
    assert not any(cause in message for message in named), named


@pytest.mark.usefixtures("few_bytes")
def test_that_a_tensor_was_too_large_is_said(tmp_path: Path) -> None:
    theirs = _model()
    theirs["lm_head.weight"] += np.random.default_rng(1).normal(0, 1, (128, 64)).astype(np.float32)
    ((message, hint),) = _findings(tmp_path, theirs)
    assert message.startswith("1 tensor differs: lm_head.weight; 8,192 of 8,192 elements")
    assert hint.startswith("too large (32.8 kB) to be diagnosed whole")


MOE = """{"architectures": ["AForCausalLM"], "model_type": "%s", "hidden_size": 32, "num_hidden_layers": 3,
"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 24, "intermediate_size": 24}"""


def _stacked(family: str) -> Tensors:
    """Experts in one tensor, as transformers 5 holds them; those of gpt-oss lie transposed, gate and up in turn."""
    random = np.random.default_rng(0)
    shapes = {"gate_up_proj": (4, 48, 32), "down_proj": (4, 32, 24)}
    return {
        f"model.layers.{layer}.mlp.experts.{name}": random.normal(
            0, 0.1, (shape[0], *shape[:0:-1]) if family == "gpt_oss" else shape
        ).astype(np.float32)
        for layer in range(3)
        for name, shape in shapes.items()
    }


def _experts_permuted(tensors: Tensors, family: str) -> None:
    for name in tensors:
        tensors[name] = np.ascontiguousarray(tensors[name][[0, 2, 1, 3]])


def _halves_swapped(tensors: Tensors, family: str) -> None:
    for name in [name for name in tensors if "gate_up" in name]:
        value = tensors[name]
        turned = (
            value.reshape(4, 32, 24, 2)[..., ::-1].reshape(value.shape)
            if family == "gpt_oss"
            else np.roll(value, 24, 1)
        )
        tensors[name] = np.ascontiguousarray(turned)


def _one_is_zero(tensors: Tensors, family: str) -> None:
    tensors["model.layers.1.mlp.experts.down_proj"][3] = 0


def _layer_again(tensors: Tensors, family: str) -> None:
    for name in [name for name in tensors if ".layers.2." in name]:
        tensors[name] = tensors[name.replace(".2.", ".1.")]


EXPERTS: list[tuple[Callable[[Tensors, str], None], str]] = [
    (_experts_permuted, "experts are permuted: 1 is 2, 2 is 1"),
    (_halves_swapped, "gate and up are swapped"),
    (_one_is_zero, "every element is zero"),
    (_layer_again, "layer 2 equals layer 1: pipeline offset 1"),
]


@pytest.mark.parametrize(("change", "said"), EXPERTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "of_nobody"])
@pytest.mark.usefixtures("few_bytes")
def test_experts_that_share_a_large_tensor_are_looked_at_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, change: Callable[[Tensors, str], None], said: str
) -> None:
    monkeypatch.setitem(globals(), "CONFIG", MOE % family)
    monkeypatch.setitem(globals(), "_model", lambda: _stacked(family))
    theirs = _stacked(family)
    change(theirs, family)
    held, real = [], difference_causes.TensorFiles.read_tensor
    monkeypatch.setattr(
        difference_causes.TensorFiles, "read_tensor", lambda *at: held.append(at[1].nbytes) or real(*at)
    )
    found = _findings(tmp_path, theirs)
    assert len(found) == 1
    assert said in found[0][0], found
    assert held
    assert max(held) < 8000, "no large tensor is read whole"


@pytest.mark.usefixtures("few_bytes")
def test_experts_that_differ_for_no_known_cause_are_not_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "CONFIG", MOE % "qwen3_moe")
    monkeypatch.setitem(globals(), "_model", lambda: _stacked("qwen3_moe"))
    theirs = _stacked("qwen3_moe")
    for value in theirs.values():
        value[2] += np.random.default_rng(1).normal(0, 1, value[2].shape).astype(np.float32)
    ((message, _),) = _findings(tmp_path, theirs)
    assert message.startswith("6 tensors differ: model.layers.{0-2}.mlp.experts.down_proj")
