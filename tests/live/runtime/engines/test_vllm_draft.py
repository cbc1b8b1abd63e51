"""Draft models on the real vLLM: what a sync of the target does to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.draft import DraftWeights
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines.engine_options import parse_switches
from ckptcheck.live.runtime.engines.vllm import VllmEngine, VllmOptions
from tests.conftest import needs_engine
from tests.factories import sent_buckets
from tests.factories.refit_cases import FakeTrainer

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
HIDDEN = 128


class Holder(FakeTrainer):
    """Holds the weights of a checkpoint, with what no trainer has: its layers for multi-token prediction."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder)
        self._held = sent_buckets.read_weights(checkpoint)

    def save(self, folder: Path) -> None:
        pass


def drafted(**draft: Any) -> VllmOptions:
    return VllmOptions(extra_arguments={"speculative_config": {"num_speculative_tokens": 1, **draft}})


def mimo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Qwen2 with one layer for multi-token prediction, as MiMo has it (vllm/model_executor/models/mimo_mtp.py)."""
    monkeypatch.setitem(live.MODELS, "qwen2-wide", {"model_type": "qwen2", "hidden_size": HIDDEN})
    live.write("qwen2-wide", folder)
    tensors = sent_buckets.read_weights(folder)
    layer = {name: values for name, values in tensors.items() if name.startswith("model.layers.1.")}
    at = "model.mtp_layers.0."
    tensors |= {name.replace("model.layers.1.", at): 0.9 * values for name, values in layer.items()}
    tensors |= {f"{at}{name}_layernorm.weight": np.ones(HIDDEN, np.float32) for name in ("token", "hidden", "final")}
    draw = np.random.default_rng(0).standard_normal((HIDDEN, 2 * HIDDEN))
    tensors[f"{at}input_proj.weight"] = (draw / HIDDEN**0.5).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_draft_model_and_layers_for_multi_token_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_engine("vllm")
    target, draft = live.write("llama", tmp_path / "target"), live.write("qwen3", tmp_path / "draft")
    with VllmEngine(target, drafted(method="draft_model", model=str(draft))) as engine:
        found = judged(engine, target, tmp_path / "one")
        names = {name for _, name in engine.digest_tensors() if name.startswith("draft:")}
        assert "draft:model.layers.1.self_attn.qkv_proj.weight" in names
        assert not found  # it has a checkpoint of its own, and stays what it was
        own = mimo(tmp_path / "mimo", monkeypatch)
        engine.restart(own, drafted(method="mtp"))
        found = judged(engine, own, tmp_path / "two")
    assert "draft:" not in found.get("REF001", "")  # which has a bias that this checkpoint lacks
    assert "draft:model.mtp_layers.2.mtp_block.mlp.down_proj.weight" in found["REF068"]


def sent_draft(checkpoint: Path, folder: Path) -> DraftWeights:
    folder.mkdir()
    draft = DraftWeights(open_checkpoint(str(checkpoint)), is_own_model=True, exchange=folder)
    draft.hold(())
    return draft


def judged(engine: VllmEngine, checkpoint: Path, folder: Path) -> dict[str, str]:
    """Sync the weights that it was loaded with, over marks; what was not written is told."""
    folder.mkdir()
    engine.close, close = (lambda: None), engine.close  # type: ignore[method-assign]
    try:
        settings = TrialSettings(steps=0, logprobs=False)
        trial = RefitTrial(
            "t", lambda: Holder(folder, checkpoint), lambda _: engine, settings, vocabulary=512, folder=folder
        )
        trace = trial.run()
    finally:
        engine.close = close  # type: ignore[method-assign]
    assert not trace.failed_phases
    report = run_rules(trace, [rule for rule in rule_loader.load_rules() if rule.code in ("REF001", "REF068")])
    return {finding.code: " ".join([finding.message, *finding.names]) for finding in report.findings}


def test_the_tokens_of_a_step_show_how_well_a_draft_model_guesses(tmp_path: Path) -> None:
    needs_engine("vllm")
    target, other = live.write("llama", tmp_path / "target"), live.write("qwen3", tmp_path / "other")
    prompts = [list(range(9, 40)), list(range(50, 90))]
    with VllmEngine(target, VllmOptions(switches=parse_switches([f"draft={target}", "speculative=3"]))) as engine:
        assert engine.info.facts["draft"] == "model"
        assert not engine.ignored_switches
        assert engine.acceptance_length(prompts, 25) == 4  # it drafts for itself: every token is accepted
        engine.restart(target, VllmOptions(switches=parse_switches([f"draft={other}", "speculative=3"])))
        assert 1 <= engine.acceptance_length(prompts, 25) < 2
        drafts = {key for key in engine.digest_tensors() if key[1].startswith("draft:")}
        assert engine.scramble_weights(keep_draft=True).names.isdisjoint(drafts)
        assert engine.scramble_weights().names.isdisjoint(drafts)  # it has a checkpoint of its own
        before = engine.digest_tensors()
        marked = engine.scramble_weights(keep_draft=False).names & drafts
        assert marked
        for transport in ("gloo", "load_weights"):
            engine.scramble_weights(keep_draft=False)
            answer = sent_draft(other, tmp_path / transport).send(engine, 100_000, transport)
            assert answer == replace(answer, ok=True, message="")
            unwritten = engine.find_unwritten().keys()
            assert unwritten.isdisjoint(drafts)
            assert unwritten  # vLLM's session for a draft leaves the served model alone
            after = engine.digest_tensors()
            assert all(after[key].digest == before[key].digest for key in marked)
