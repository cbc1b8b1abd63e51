"""A trial of a vision-language model on the real vLLM: an update that leaves old images in the encoder's cache is noticed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import ckptcheck
from tests.conftest import needs_engine
from tests.paths import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.matrix, pytest.mark.xdist_group("vllm-cpu")]
PYTHON = """\
#!/bin/sh
export PYTHONPATH="{modules}${{PYTHONPATH:+:$PYTHONPATH}}"
exec "{python}" "$@"
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of vLLM with torchvision, which its environment leaves out and SGLang's has, for the same torch."""
    vllm, sglang = needs_engine("vllm"), needs_engine("sglang")
    folder = tmp_path_factory.mktemp("python")
    modules = folder / "modules"
    modules.mkdir()
    for found in sorted(Path(sglang.python).parent.parent.glob("lib/python3*/site-packages/torchvision*")):
        (modules / found.name).symlink_to(found)
    script = folder / "python"
    script.write_text(PYTHON.format(modules=modules, python=vllm.python), encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def model(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "qwen2-vl"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(python), str(ROOT / "fixtures/tiny_qwen2_vl.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return folder


@pytest.mark.parametrize(
    ("transport", "message"),
    [
        ("gloo", "logprobs after an image that the engine had seen before differ by"),
        ("reload", "the engine fails on an image that it had seen before"),
    ],
)
def test_old_images_after_an_update(python: Path, model: Path, transport: str, message: str) -> None:
    """vLLM 0.32: the weight-transfer API keeps them; `reload_weights` drops them in the workers, unknown to the scheduler."""
    report = ckptcheck.refit(
        model, trainer="transformers", transport=transport, perturb=0.1, bucket_mb=1.0, engine_python=python,
        trainer_python=python,
    )  # fmt: skip
    found = {finding.code: finding.message for finding in report.findings}
    assert message in found["REF011"]
    assert not found.keys() - {"REF011", "REF033"}, found
    assert {"REF003", "REF010", "REF012", "REF019"} <= set(report.passed)
