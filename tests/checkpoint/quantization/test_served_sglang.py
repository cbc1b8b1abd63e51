"""What a scan says that SGLang will do with a checkpoint is what a real SGLang does.

It multiplies packed integers with CUDA kernels only; a plugin does that in torch, and all else is SGLang's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader as loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.environments.interpreter import Interpreter, find_interpreter
from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs
from tests.factories.checkpoint_cases import ROOT, edit_tensors, read_tensors

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
TOKENS = [5, 17, 33, 64, 100, 7, 9, 200, 31, 77, 15, 2]
CLOSE = 1e-4
"""Both sides compute in float32; measured 1e-6."""
RULES = [rule for rule in loader.load_rules() if rule.code in ("QNT001", "QNT020", "QNT027")]
SPARE = ("g_idx", "g_idx_sort_indices")
"""Ends of the parameters of experts that only act-order fills."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama, Qwen3 and Qwen3-MoE in W4A16, with groups of 32."""
    needs("torch", "transformers")
    import quantized
    import transformers

    folder = tmp_path_factory.mktemp("models")
    plain = quantized.plain_models(folder / "bf16")
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**quantized.SIZES))
    model.bfloat16().save_pretrained(folder / "bf16/qwen3")
    for name, source in (*plain.items(), ("qwen3", folder / "bf16/qwen3")):
        quantized.quantize(source, folder / name, quantized.RECIPES["ct-w4a16"])
    return folder


@pytest.fixture(scope="module")
def place() -> Interpreter:
    try:
        return find_interpreter("sglang-cpu")
    except CkptcheckError as error:
        pytest.skip(f"{error.message} ({error.hint})")


@pytest.fixture(scope="module")
def loader(place: Interpreter) -> Iterator[WorkerClient]:
    with host(place) as loading:
        yield loading


def host(place: Interpreter, log: Path | None = None) -> WorkerClient:
    return WorkerClient(
        place.python, ROOT / "tests/doubles/sglang_serving.py", name="sglang", env=place.variables, log=log
    )


def serve(place: Interpreter, folder: Path, log: Path) -> dict[str, Any]:
    with host(place, log) as serving:
        served: dict[str, Any] = serving.call("serve", folder=str(folder), tokens=TOKENS, timeout=300)
    served["unfilled"] = [name for name in served["unfilled"] if not name.endswith(SPARE)]
    return served


def changed(folder: Path, to: Path, *, ignore: list[str], plain: tuple[str, ...] = ()) -> Path:
    """Copy a checkpoint with another ignore list. plain: modules that get an unquantized weight of 128 × 128 or 256 × 128."""
    shutil.copytree(folder, to)
    path = to / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"]["ignore"] = ignore
    path.write_text(json.dumps(config), encoding="utf-8")
    held = open_checkpoint(str(to)).tensors
    edits: dict[str, Any] = {name: False for name in held if name.rpartition(".")[0] in plain}
    for module in plain:
        rows = 256 if "mlp" in module else 128
        edits[f"{module}.weight"] = {"dtype": "BF16", "shape": [rows, 128]}
    if edits:
        edit_tensors(to / "model.safetensors", edits)
    return to


def said(folder: Path) -> list[str]:
    ckpt = open_checkpoint(str(folder), options=ScanOptions(consumers=("sglang",)))
    return [finding.message for finding in run_rules(ckpt, RULES).findings]


def layer(number: int, *parts: str) -> list[str]:
    return [f"model.layers.{number}.{part}" for part in parts]


def packed(module: str) -> list[str]:
    return [f"{module}.weight_packed", f"{module}.weight_scale", f"{module}.weight_shape"]


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_sound_checkpoints_load_and_compute_what_their_weights_say(
    place: Interpreter, models: Path, tmp_path: Path, model: str
) -> None:
    """Qwen3-MoE without its routers in the list: SGLang quantizes none of them, whatever a list says."""
    folder = changed(models / model, tmp_path / model, ignore=["lm_head"])
    assert said(folder) == []
    served = serve(place, folder, tmp_path / "log")
    assert served["unfilled"] == []
    assert np.abs(np.array(served["logprobs"]) - reference(folder)).max() < CLOSE


def test_llama_drops_what_it_has_no_place_for_and_serves_what_was_in_memory(
    place: Interpreter, models: Path, tmp_path: Path
) -> None:
    """By names alone SGLang does not see that gate_proj and up_proj are ignored: its Llama does not say what it fuses."""
    [down], [o], (gate, up) = layer(0, "mlp.down_proj"), layer(1, "self_attn.o_proj"), layer(2, *GATE_UP)
    folder = changed(models / "dense", tmp_path / "llama", ignore=["lm_head", down, gate, up], plain=(o, gate, up))
    does = "and computes with uninitialised memory"
    assert said(folder) == [
        f"{down} is stored quantized, but ignored by '{down}': sglang 0.5.23 drops {down}.weight_packed {does}",
        f"{o} and 2 more are stored unquantized, but targeted by 'Linear' and not ignored: "
        f"sglang 0.5.23 drops {o}.weight {does}",
    ]
    served = serve(place, folder, tmp_path / "log")
    fused = gate.replace("gate_proj", "gate_up_proj")
    assert served["unfilled"] == [f"{down}.weight", *packed(o), *packed(fused)]
    assert set(served["logprobs"]) == {None}
    log = (tmp_path / "log").read_text(encoding="utf-8")
    for dropped in (f"{down}.weight_packed", f"{o}.weight", f"{fused}.weight"):
        assert f"Parameter {dropped} not found in params_dict" in log


def test_qwen3_moe_drops_experts_without_a_word(place: Interpreter, models: Path, tmp_path: Path) -> None:
    experts = "model.layers.1.mlp.experts"
    entry = "re:.*layers.1.mlp.experts.*"
    folder = changed(models / "moe", tmp_path / "moe", ignore=["lm_head", entry])
    assert said(folder) == [
        f"{experts}.0.down_proj and 11 more are stored quantized, but ignored by '{entry}': sglang 0.5.23 drops "
        f"{experts}.0.down_proj.weight_packed and computes with uninitialised memory"
    ]
    served = serve(place, folder, tmp_path / "log")
    assert served["unfilled"] == [f"{experts}.w13_weight", f"{experts}.w2_weight"]
    assert None in served["logprobs"]
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "not found" not in log
    assert "experts" not in log


def test_qwen3_stops_at_a_part_of_a_fused_module_and_drops_others(
    loader: WorkerClient, models: Path, tmp_path: Path
) -> None:
    [down] = layer(1, "mlp.down_proj")
    folder = changed(models / "qwen3", tmp_path / "down", ignore=["lm_head", down])
    assert "sglang 0.5.23 drops" in said(folder)[0]
    assert loader.call("load", folder=str(folder), timeout=300)["unfilled"] == [f"{down}.weight"]

    folder = changed(models / "qwen3", tmp_path / "regex", ignore=["lm_head", r"re:.*layers\.1\.mlp\..*"])
    [tensor] = layer(1, "mlp.gate_proj.weight_packed")
    assert [message.partition(": ")[2] for message in said(folder)] == [f"sglang 0.5.23 stops at {tensor}"]
    fused = tensor.replace("gate_proj", "gate_up_proj")
    assert loader.call("load", folder=str(folder), timeout=300)["error"] == f"KeyError: '{fused}'"

    gate, up = layer(1, *GATE_UP)
    folder = changed(models / "qwen3", tmp_path / "plain", ignore=["lm_head"], plain=(gate, up))
    assert [message.partition(": ")[2] for message in said(folder)] == [f"sglang 0.5.23 stops at {gate}.weight"]
    fused = f"{gate.replace('gate_proj', 'gate_up_proj')}.weight"
    assert loader.call("load", folder=str(folder), timeout=300)["error"] == f"KeyError: '{fused}'"


def test_parts_of_a_fused_module_that_are_treated_differently(
    loader: WorkerClient, models: Path, tmp_path: Path
) -> None:
    """Qwen3-MoE says what it fuses, so SGLang raises; of Llama it tests the fused name alone, and the entry is of no use."""
    [q] = layer(1, "self_attn.q_proj")
    fused = q.replace("q_proj", "qkv_proj")
    folder = changed(models / "moe", tmp_path / "moe", ignore=["lm_head", q])
    assert said(folder) == [
        f"sglang 0.5.23 stops: the list matches q_proj of {fused} but not k_proj, v_proj; "
        "the parts of a fused layer must match together"
    ]
    error = loader.call("load", folder=str(folder), timeout=300)["error"]
    assert error.startswith(
        f"ValueError: Found different quantization schemes for ['q_proj', 'k_proj', 'v_proj'] in {fused}"
    )

    folder = changed(models / "dense", tmp_path / "llama", ignore=["lm_head", q])
    assert said(folder) == []
    assert loader.call("load", folder=str(folder), timeout=300) == {"unfilled": []}


GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def reference(folder: Path) -> np.ndarray[Any, Any]:
    """Score the dequantized weights with transformers, in float32."""
    import packers
    import torch
    import transformers

    modules: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name, (_, value) in read_tensors(folder / "model.safetensors").items():
        module, _, role = name.rpartition(".")
        modules.setdefault(module, {})[role] = value
    plain: packers.Stored = {}
    for module, stored in modules.items():
        quantized = "weight_packed" in stored
        weight = packers.dequantized(stored, "pack-quantized") if quantized else packers.from_bf16(stored["weight"])
        plain[f"{module}.weight"] = ("F32", np.array(weight))
    out = folder.with_name("dequantized")
    out.mkdir()
    packers.write(out / "model.safetensors", plain)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0]
    every = torch.log_softmax(logits.double(), -1)
    return np.array([float(every[at, token]) for at, token in enumerate(TOKENS[1:])])
