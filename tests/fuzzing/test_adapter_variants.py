"""Every adapter that PEFT itself trains and saves is clean, beside its base model and without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.fuzzing.adapter_edits import build_base

peft = pytest.importorskip("peft", reason="PEFT writes the adapters; make test-all installs it")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VARIANTS: dict[str, dict[str, Any]] = {
    "DoRA": {"use_dora": True},
    "rank-stabilized": {"use_rslora": True},
    "KaSA": {"kasa_config": ("KasaConfig", {})},
    "MonteCLoRA": {"monteclora_config": ("MontecloraConfig", {})},
    "VeLoRA": {"velora_config": ("VeloraConfig", {})},
    "activated": {"alora_invocation_tokens": [1, 2]},
    "QALoRA": {"use_qalora": True, "qalora_group_size": 16},
    "a bias of lora_B": {"lora_bias": True},
    "all biases": {"bias": "all"},
    "repeated layers": {"layer_replication": [(0, 2), (1, 3)]},
    "PiSSA": {"init_lora_weights": "pissa"},
    "parameters": {"target_parameters": ["mlp.gate_proj.weight"], "target_modules": ["q_proj"]},
    "tokens": {"trainable_token_indices": {"embed_tokens": [1, 2]}},
    "tokens of one list": {"trainable_token_indices": [1, 2, 5]},
    "whole modules": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "all linear modules": {"target_modules": "all-linear"},
    "excluded modules": {"target_modules": "all-linear", "exclude_modules": ["down_proj"]},
    "ranks of modules": {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"v_proj": 4}},
    "two layers": {"layers_to_transform": [0, 2]},
    "a pattern": {"target_modules": r".*\.layers\.[01]\..*_proj"},
    "an embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "a head": {"target_modules": ["lm_head", "q_proj"]},
    "a tied head": {"target_modules": ["lm_head", "q_proj"], "_tied": True},
    "an embedding and the head tied to it": {
        "target_modules": ["embed_tokens", "q_proj"],
        "ensure_weight_tying": True,
        "_tied": True,
    },
}
"""Name → settings of LoraConfig; a pair stands for a class of settings beside it, which PEFT has since 0.18 or later.

`_tied` is one of the base model: its embedding is its head too.
"""
OTHER_METHODS: dict[str, dict[str, Any]] = {
    "ADALORA": {"init_r": 4, "target_r": 2, "total_step": 10, "tinit": 1, "tfinal": 2},
    "IA3": {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LOHA": {"r": 4},
    "LOKR": {"r": 2, "decompose_both": True},
    "OFT": {"r": 0, "oft_block_size": 4},
    "BOFT": {"boft_block_size": 4},
    "VERA": {"r": 4, "target_modules": ["q_proj"]},
    "LN_TUNING": {"target_modules": None},
    "TRAINABLE_TOKENS": {"token_indices": [1, 2], "target_modules": ["embed_tokens"]},
    "PROMPT_TUNING": {"num_virtual_tokens": 4},
    "P_TUNING": {"num_virtual_tokens": 4},
    "PREFIX_TUNING": {"num_virtual_tokens": 4},
    "VBLORA": {"vector_length": 4, "num_vectors": 8, "topk": 2},
    "FROD": {"target_modules": ["q_proj"]},
    "C3A": {"block_size": 8},
    "HRA": {"r": 4},
    "MISS": {"r": 4},
    "FOURIERFT": {"n_frequency": 10},
}
"""Method of PEFT beside LoRA → settings of its config."""


@pytest.mark.parametrize("name", VARIANTS)
def test_what_peft_saves_is_clean(name: str, tmp_path: Path) -> None:
    settings = {}
    for key, value in VARIANTS[name].items():
        if isinstance(value, tuple):
            kind = getattr(peft.tuners.lora.config, value[0], None)
            if kind is None:
                pytest.skip(f"this PEFT has no {value[0]}")
            value = kind(**value[1])
        settings[key] = value
    base = build_base(tie_word_embeddings=settings.pop("_tied", False))
    base.save_pretrained(tmp_path / "base")
    chosen = {"target_modules": ["q_proj", "v_proj"], "r": 4, **settings}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **chosen))
    for named, report in iter_reports(model, tmp_path / "adapter"):
        assert ("ADP009" in report.passed) is (named == "base")
        assert ("ADP009" in dict(report.skipped)) is (named != "base")
        assert "ADP008" in report.passed


def iter_reports(model: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Save an adapter that has learned something, and yield its report with its base at hand and elsewhere: none has a warning."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    path = folder / "adapter_config.json"
    for named in ("base", "elsewhere"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": named}))
        report = ckptcheck.scan(folder)
        assert [f"{one.code} {one.message}" for one in report.findings if one.severity != "info"] == []
        yield named, report


@pytest.mark.parametrize("method", OTHER_METHODS)
def test_what_other_methods_save_is_clean(method: str, tmp_path: Path) -> None:
    kind = next(
        (found for each, found in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items() if each.name == method), None
    )
    if kind is None:
        pytest.skip(f"this PEFT has no {method}")
    base = build_base()
    base.save_pretrained(tmp_path / "base")
    settings = {"target_modules": ["q_proj", "v_proj"], **OTHER_METHODS[method]}
    if settings["target_modules"] is None or "num_virtual_tokens" in settings:
        del settings["target_modules"]
    model = peft.get_peft_model(base, kind(task_type="CAUSAL_LM", **settings))
    for _, report in iter_reports(model, tmp_path / "adapter"):
        assert not report.crashed
