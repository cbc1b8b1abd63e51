"""What the commands that run engines refuse before they start any: one sentence, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import live
import pytest

from ckptcheck.rollouts import write_rollouts
from tests.factories.rollout_cases import draw_rollouts

pytestmark = pytest.mark.slow

BAD = [
    (("record", "tiny", "-o", "r.safetensors", "--engine", "tgi"), "there is no engine tgi"),
    (("record", "tiny", "-o", "r.safetensors", "--switch", "cache=on"), "there is no switch cache"),
    (("record", "broken", "-o", "r.safetensors"), "broken has 1 error, the first: num_hidden_layers is 3"),
    (
        ("record", "tiny", "-o", "r.safetensors", "--prompts", "none.jsonl"),
        "cannot read none.jsonl: No such file or directory\n",
    ),
    (
        ("record", "tiny", "-o", "r.safetensors", "--set", "engine-mode=fast"),
        "--set engine-mode is one of plain, stock, not fast",
    ),
    (("probe", "tiny", "--engine", "tgi"), "there is no engine tgi"),
    (("calibrate", "tiny", "-o", "r.safetensors", "--engine", "tgi"), "there is no engine tgi"),
    (("record", "critic", "-o", "r.safetensors"), "is a critic or another scoring model"),
    (("score", "torn.safetensors", "tiny", "-o", "s.safetensors"), "torn.safetensors cannot be scored"),
    (("matrix", "tiny", "--lengths", "long"), "--lengths takes whole numbers, not long"),
    (("matrix", "tiny", "--data", "real,true"), "--data is some of real, synthetic, not real, true"),
    (("matrix", "tiny", "--pairs", "vllm:vllm"), "vllm:vllm is no pair of a trainer and an engine"),
    (("matrix", "tiny", "--data", "real"), "nothing of the matrix can be measured: real data: "),
    (("matrix", "tiny", "--lengths", "9000"), "length 9,000: the model's context ends at 512 tokens"),
    (("probe", "tiny", "--only", "luck"), "there is no probe luck"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    live.write("llama", folder / "tiny")
    live.write("llama", folder / "broken")
    live.write("llama", folder / "critic")
    config = folder / "broken" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    config = folder / "critic" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaForTokenClassification"))
    write_rollouts(draw_rollouts(sequences=2), folder / "torn.safetensors")
    (folder / "torn.safetensors").write_bytes((folder / "torn.safetensors").read_bytes()[:-50])
    return folder


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_what_cannot_be_run_is_one_sentence(arguments: tuple[str, ...], said: str, here: Path) -> None:
    command = [sys.executable, "-m", "ckptcheck", "parity", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "XDG_CACHE_HOME": str(here / "home")}
    result = subprocess.run(command, cwd=here, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert "starting" not in result.stderr
    assert not result.stdout
    assert not (here / "r.safetensors").exists()
