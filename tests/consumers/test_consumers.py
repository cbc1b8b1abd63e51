"""--consumers and the repair of ignore lists: what is written is what every chosen consumer reads as the tensors are stored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.consumers.mismatches import find_mismatches, find_refusals, find_sync_mismatches
from ckptcheck.consumers.rewrite_ignore import rewrite_ignore_list
from tests.conftest import needs
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.paths import ROOT

SCHEMA = ROOT / "ckptcheck/reporters/report.schema.json"
EVERYBODY = ("vllm", "sglang", "transformers", "compressed-tensors", "slime")


def copy(base: str, folder: Path, **changes: Any) -> Path:
    shutil.copytree(CHECKPOINTS / base, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def scan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "scan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def ignore(folder: Path, key: str = "ignore") -> Any:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization_config"].get(key)


def test_the_table(tmp_path: Path) -> None:
    folder = copy("tiny-fp8", tmp_path / "ckpt", modules_to_not_convert=["lm_head"])
    result = scan(str(folder), "--consumers", "vllm,sglang,slime")
    assert result.returncode == 2
    assert "✗ incomplete: --consumers could not tell about slime: what slime makes of fp8 is not known" in result.stdout
    assert (
        "  consumer       files  quantized  plain  as stored?\n"
        "  vllm 0.32.0        1         41      2  builds 2 plain modules quantized\n"
        "  sglang 0.5.23      1         36      4  yes\n"
        "  slime 2026-08      –          0      0  unknown: what slime makes of fp8 is not known to ckptcheck\n"
    ) in result.stdout
    report = json.loads(scan(str(folder), "--consumers", "sglang", "--format", "json").stdout)
    validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert report["consumers"] == [
        {"consumer": "sglang", "version": "0.5.23", "files": 1, "quantized": 36, "plain": 4, "agrees": "yes"}
    ]
    assert report["verdict"] == "clean"  # what only vLLM would get wrong is nobody's business here


def test_a_consumer_nobody_knows(tmp_path: Path) -> None:
    result = scan(str(CHECKPOINTS / "tiny-w4a16"), "--consumers", "vlm")
    assert result.returncode == 2
    assert result.stderr.startswith("ckptcheck: 'vlm' is no consumer that ckptcheck knows; did you mean vllm?\n")


def test_the_list_is_repaired_and_the_old_config_kept(tmp_path: Path) -> None:
    folder = copy(
        "tiny-w4a16", tmp_path / "ckpt", ignore=["lm_head", "re:.*mlp.gate", "re:self_attn.o_proj$", "model.norm"]
    )
    before = (folder / "config.json").read_text(encoding="utf-8")
    shown = scan(str(folder), "--diff")
    assert shown.returncode == 1
    assert '-      "re:.*mlp.gate",\n' in shown.stdout
    assert (folder / "config.json").read_text(encoding="utf-8") == before
    result = scan(str(folder), "--fix")
    assert (
        result.returncode,
        "removed 2 patterns from quantization_config.ignore of config.json; the old file is config.json.orig"
        in result.stderr,
    ) == (0, True)
    assert ignore(folder) == ["lm_head", "model.norm"]
    assert (folder / "config.json.orig").read_text(encoding="utf-8") == before
    assert "nothing to repair" in scan(str(folder), "--fix").stderr


def test_slime_and_the_engines_read_the_new_list_alike(tmp_path: Path) -> None:
    folder = copy("tiny-w4a16", tmp_path / "ckpt", ignore=[])
    result = scan(str(folder), "--fix", "--consumers", ",".join(EVERYBODY))
    assert result.returncode == 0, result.stdout
    assert ignore(folder) == ["lm_head", "model.embed_tokens"]


def test_a_list_that_no_entry_could_mend_is_left_alone(tmp_path: Path) -> None:
    groups = {
        "group_0": {
            "targets": ["re:.*mlp.*"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16},
        }
    }
    folder = copy("tiny-w4a16", tmp_path / "ckpt", config_groups=groups, ignore=["model.layers.0.mlp.gate_proj"])
    before = (folder / "config.json").read_bytes()
    result = scan(str(folder), "--fix")
    sentence = (
        "the ignore list was not repaired: model.layers.0.self_attn.k_proj is stored quantized, and no list makes vllm"
    )
    assert sentence in result.stderr
    assert (folder / "config.json").read_bytes() == before


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("torch", "transformers")
    import quantized

    folder = tmp_path_factory.mktemp("formats")
    quantized.write_all(folder)
    shutil.rmtree(folder / "bf16")
    return folder


def test_sound_checkpoints_of_every_format_are_read_as_they_are_stored(formats: Path) -> None:
    folders = sorted(formats.iterdir())
    assert len(folders) > 40
    for folder in folders:
        ckpt = open_checkpoint(str(folder))
        assert not find_mismatches(ckpt, quantized=True), folder.name
        assert not find_mismatches(ckpt, quantized=False), folder.name
        assert not find_refusals(ckpt), folder.name
        assert folder.name.split("-")[1] in ("gptq", "oss") or rewrite_ignore_list(ckpt) is None, folder.name


@pytest.mark.parametrize(
    "consumers", [("vllm",), ("sglang",), ("vllm", "sglang"), ("vllm", "sglang", "slime")], ids="+".join
)
def test_an_emptied_list_is_written_again(formats: Path, tmp_path: Path, consumers: tuple[str, ...]) -> None:
    mended = 0
    for folder in sorted(formats.iterdir()):
        key = {"ct": "ignore", "fp8": "modules_to_not_convert", "modelopt": "ignore"}.get(folder.name.split("-")[1])
        if key is None or ("slime" in consumers and key != "ignore"):
            continue
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"].pop(key)
        out = tmp_path / folder.name
        out.mkdir()
        shutil.copy(folder / "model.safetensors", out)
        (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
        ckpt = open_checkpoint(str(out), options=ScanOptions(consumers=consumers))
        broken = find_mismatches(ckpt, quantized=False) or find_sync_mismatches(ckpt)
        found = rewrite_ignore_list(ckpt) if broken else None
        if found is None:
            assert not broken, folder.name
            continue
        config["quantization_config"][found[0]] = found[1]
        (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
        ckpt = open_checkpoint(str(out), options=ScanOptions(consumers=consumers))
        assert not find_mismatches(ckpt, quantized=True), folder.name
        assert not find_mismatches(ckpt, quantized=False), folder.name
        assert not find_refusals(ckpt), folder.name
        assert not find_sync_mismatches(ckpt), folder.name
        mended += 1
    assert mended > (0 if consumers == ("sglang",) else 5)


def test_nothing_is_written_on_a_guess(tmp_path: Path) -> None:
    folder = copy("tiny-fp8", tmp_path / "ckpt", modules_to_not_convert=["lm_head"])
    path = folder / "config.json"
    ckpt = open_checkpoint(str(folder))
    assert rewrite_ignore_list(ckpt) is not None  # vLLM is known to build this router quantized
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"architectures": ["NobodyKnowsForCausalLM"]}), encoding="utf-8")
    assert rewrite_ignore_list(open_checkpoint(str(folder))) is None
