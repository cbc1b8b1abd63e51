"""What a quantization that names no method comes to in the engines: asked of their own code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.consumers.undeclared_method import read_by_sglang, read_by_vllm
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from tests.conftest import needs_engine
from tests.factories.checkpoint_cases import CHECKPOINTS

MODELOPT = {"name": "modelopt", "version": "0.40.0"}
INNER = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
FLAT = {"quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "flat": FLAT,
    "flat-producer": {**FLAT, "producer": MODELOPT},
    "flat-block": {**FLAT, "quant_algo": "FP8_PB_WO"},
    "flat-empty": {**FLAT, "quant_method": ""},
    "flat-null": {**FLAT, "quant_method": None},
    "nested": {"producer": MODELOPT, "quantization": INNER},
    "nested-small": {"producer": MODELOPT, "quantization": {**INNER, "quant_algo": "nvfp4"}},
    "nested-other": {"producer": {"name": "quark"}, "quantization": INNER},
    "nested-alone": {"quantization": INNER},
    "nested-legacy": {"quantization": {**INNER, "modelopt_quant_config": {}}},
    "nested-mxfp8": {"producer": MODELOPT, "quantization": {**INNER, "quant_algo": "MXFP8"}},
    "nested-awq": {"producer": MODELOPT, "quantization": {**INNER, "quant_algo": "W4A8_AWQ"}},
    "nested-none": {"producer": MODELOPT, "quantization": {}},
    "nested-text": {"producer": MODELOPT, "quantization": "NVFP4"},
    "producer-text": {"producer": "modelopt", "quantization": INNER},
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "groups": {"config_groups": {}, "format": "pack-quantized"},
    "empty": {},
}
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


@pytest.mark.engine
@pytest.mark.parametrize("engine", VERSIONS)
def test_it_is_the_engines_own(engine: str, tmp_path: Path) -> None:
    needs_engine(engine)
    python = find_interpreter(engine)
    if python.version != VERSIONS[engine]:
        pytest.skip(f"what is known is of {engine} {VERSIONS[engine]}, not {python.version}")
    named = [f"{place}-{name}" for place in ("config", "file") for name in SETTINGS]
    for place in named:
        write(tmp_path / place)
    command = [str(python.python), str(Path(__file__).parent / "ask_undeclared_method.py"), engine, "answers", *named]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **python.variables}, capture_output=True, check=True)
    theirs = dict(zip(named, json.loads((tmp_path / "answers").read_text()), strict=True))
    ours = {
        f"config-{name}": (read_by_vllm if engine == "vllm" else read_by_sglang)(value)
        for name, value in SETTINGS.items()
    }
    for name, value in SETTINGS.items():  # SGLang goes on without a file that tells it nothing
        if engine == "vllm" or read_by_sglang(value) == "known":
            ours[f"file-{name}"] = read_by_vllm(value) if engine == "vllm" else "known"
    assert ours == {name: theirs[name] for name in ours}


def write(folder: Path) -> None:
    """Write a checkpoint whose config.json, or only the file of ModelOpt beside it, says how it is quantized."""
    place, _, name = folder.name.partition("-")
    shutil.copytree(CHECKPOINTS / "tiny-nvfp4", folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "hf_quant_config.json").unlink()
    if place == "config":
        config["quantization_config"] = SETTINGS[name]
    else:
        (folder / "hf_quant_config.json").write_text(json.dumps(SETTINGS[name]))
    (folder / "config.json").write_text(json.dumps(config))
