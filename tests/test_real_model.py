"""A real model: SmolLM2-135M-Instruct as transformers saves it, sound and damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import damage
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs

RULES = rule_loader.load_rules()
pytestmark = pytest.mark.xdist_group("smollm2")


def scan(folder: Path) -> Report:
    return run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)


def test_it_is_sound(smollm2: Path) -> None:
    report = scan(smollm2)
    assert report.findings == ()
    assert report.verdict == "clean"
    assert report.skipped == ()
    assert report.counts == {"files": 3, "tensors": 272, "bytes": 269_030_016}
    ckpt = open_checkpoint(str(smollm2))
    assert ckpt.components.is_tied is True
    assert sorted(ckpt.components.layers) == list(range(30))


def test_it_is_the_model_it_says_it_is(smollm2: Path) -> None:
    needs("torch", "transformers")
    program = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "tokens = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "ids = tokens('The capital of France is', return_tensors='pt').input_ids\n"
        "print(repr(tokens.decode(model(ids).logits[0, -1].argmax())), tokens.chat_template is not None)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(smollm2)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "' Paris' True"


def test_the_headers_are_those_that_safetensors_reads(smollm2: Path) -> None:
    from safetensors import safe_open

    ckpt = open_checkpoint(str(smollm2))
    for name, shard in ckpt.shards.items():
        with safe_open(smollm2 / name, "np") as opened:
            assert shard.tensors.keys() == set(opened.keys())
            for tensor, entry in shard.tensors.items():
                part = opened.get_slice(tensor)
                assert (entry.dtype, list(entry.shape)) == (part.get_dtype(), part.get_shape())
            assert shard.metadata == opened.metadata()


@pytest.mark.parametrize(
    ("story", "codes"),
    [
        ("lost_shard", {"IDX001"}),
        ("interrupted_download", {"ST001"}),
        ("cloned_without_lfs", {"ST014"}),
        ("careless_export", {"CFG003", "CFG012", "IDX007"}),
        ("stale_index", {"IDX001"}),
    ],
)
def test_every_story_of_the_demo_is_told(smollm2: Path, tmp_path: Path, story: str, codes: set[str]) -> None:
    import demo

    folder = damage.linked_copy(smollm2, tmp_path / story)
    getattr(demo, story)(folder)
    assert {finding.code for finding in scan(folder).findings} == codes
    assert scan(smollm2).verdict == "clean", "the damage reached the original"


def test_any_lost_tensor_of_a_layer_is_seen_and_named(smollm2: Path, tmp_path: Path) -> None:
    names = sorted(name for name in open_checkpoint(str(smollm2)).tensors if ".layers.17." in name)
    assert len(names) == 9
    for number, name in enumerate(names):
        folder = damage.linked_copy(smollm2, tmp_path / str(number))
        entries, _ = damage.header(folder / json.loads((folder / damage.INDEX).read_bytes())["weight_map"][name])
        assert name in entries
        damage.drop_tensors(folder, {name})
        found = [finding for finding in scan(folder).findings if finding.severity == "error"]
        assert [(finding.code, finding.key) for finding in found] == [("CFG003", name)]
