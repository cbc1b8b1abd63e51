"""The layer of a planted fault is named on the real vLLM, against transformers and Megatron; without one nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import live
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.localize.localization import Localization
from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.live.runtime.engines.vllm import VllmEngine
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from tests.conftest import needs_engine
from tests.doubles.faults import faulty_engines

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
PROMPT = tuple(range(40, 73))
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "localization"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("localize")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    needs_engine("vllm")
    with faulty_engines(), VllmEngine(live.write("qwen3", folder / "qwen3")) as started:
        yield started


@pytest.fixture(scope="module")
def references(folder: Path) -> dict[str, Activations]:
    """Return what transformers and Megatron give out."""
    needs_engine("megatron")
    found: dict[str, Activations] = {}
    with TensorExchange(need=1 << 24) as exchange:
        for name, layout in (("qwen3", ParallelLayout(tp=2, pp=2)), ("qwen3-moe", ParallelLayout(tp=2, ep=2))):
            ckpt = open_checkpoint(str(live.write(name, folder / f"{name}-for-trainers")))
            plain = start_transformers(ckpt, exchange)
            found[name] = plain.capture_activations(PROMPT, folder)
            plain.close()
            cut = start_megatron(ckpt, exchange, layout=layout)
            found[f"{name} {layout}"] = cut.capture_activations(PROMPT, folder)
            cut.close()
    return found


def judged(reference: Activations, other: Activations, experts_per_token: int = 0) -> Report:
    return run_rules(Localization("live", ("trainer", "vllm"), reference, other, "float32", experts_per_token), RULES)


@pytest.mark.parametrize("side", ["qwen3", "qwen3 TP2·PP2"])
def test_sides_that_compute_the_same_agree_at_every_point(
    side: str, engine: VllmEngine, references: dict[str, Activations], folder: Path
) -> None:
    engine.restart(folder / "qwen3")
    report = judged(references[side], engine.capture_activations(PROMPT, folder))
    assert report.verdict == "clean", report.findings
    assert report.counts["tensors"] == 29
    assert set(report.passed) == {"LOC001", "LOC002"}


def test_experts_agree_and_are_chosen_alike(
    engine: VllmEngine, references: dict[str, Activations], folder: Path
) -> None:
    engine.restart(live.write("qwen3-moe", folder / "qwen3-moe"))
    seen = engine.capture_activations(PROMPT, folder)
    for side in ("qwen3-moe", "qwen3-moe TP2·EP2"):
        report = judged(references[side], seen, experts_per_token=2)
        assert report.verdict == "clean", report.findings
        assert "LOC005" in report.passed


@pytest.mark.parametrize(
    ("what", "module", "words"),
    [
        ("eps", "model.layers.1.post_attention_layernorm", "each token by a factor of its own"),
        ("rope", "model.layers.1.self_attn.core", "the first token agrees, so it is what depends on the position"),
        ("qkv", "model.layers.1.self_attn.q_proj", "the same columns in another order (64 of 128 are elsewhere)"),
    ],
)
def test_the_layer_of_a_planted_fault_is_named(
    what: str, module: str, words: str, engine: VllmEngine, references: dict[str, Activations], folder: Path
) -> None:
    engine.restart(folder / "qwen3")
    engine._worker.call("plant", layer=1, what=what)
    report = judged(references["qwen3"], engine.capture_activations(PROMPT, folder))
    found = {finding.code: finding for finding in report.findings}
    assert found.keys() == {"LOC001"}
    assert found["LOC001"].key == module
    assert words in found["LOC001"].message


@pytest.mark.xdist_group("sglang-cpu")
def test_sglang_agrees_at_every_point(references: dict[str, Activations], folder: Path) -> None:
    needs_engine("sglang")
    from ckptcheck.live.runtime.engines.sglang import SglangEngine

    with SglangEngine(live.write("qwen3", folder / "qwen3-for-sglang")) as engine:
        report = judged(references["qwen3"], engine.capture_activations(PROMPT, folder))
        assert report.verdict == "clean", report.findings
        assert report.counts["tensors"] == 29
        engine.restart(live.write("qwen3-moe", folder / "qwen3-moe-for-sglang"))
        report = judged(references["qwen3-moe"], engine.capture_activations(PROMPT, folder), experts_per_token=2)
        assert report.verdict == "clean", report.findings
