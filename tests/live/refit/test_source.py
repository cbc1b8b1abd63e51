"""What a trial starts from, and how what it finds is named."""

from __future__ import annotations

import json
from pathlib import Path

import live
import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.scoring_inputs import TrialTokenizer
from ckptcheck.live.refit.source import open_source
from ckptcheck.live.refit.weight_names import describe_origin, trainer_weights, unmatched_weights
from ckptcheck.live.runtime.trainers.base import Weight
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.refit_cases import run_trial_case

VLLM_EXPERTS = "model.layers.1.mlp.experts.routed_experts.w13_weight"


@pytest.mark.parametrize(
    "name", ["dense", "tp2-pp2", "per-layer", "legacy-tp2", "legacy-pp2", "moe-ep2", "legacy-moe-ep2"]
)
def test_a_megatron_run_becomes_what_an_engine_loads(name: str, tmp_path: Path) -> None:
    found = open_source(str(MEGATRON / name), tmp_path / "source")
    assert found.target == str(MEGATRON / name)
    assert found.config is not None
    assert found.config.architecture == ("Qwen3MoeForCausalLM" if "moe" in name else "Qwen3ForCausalLM")
    assert found.components.embedding == "model.embed_tokens.weight"


def test_what_the_arguments_of_a_run_do_not_say_is_taken_from_a_folder(tmp_path: Path) -> None:
    usual = open_source(str(MEGATRON / "tp2-pp2"), tmp_path / "usual")
    told = tmp_path / "told"
    told.mkdir()
    assert usual.config is not None
    (told / "config.json").write_text(
        json.dumps({**usual.config.value, "max_position_embeddings": 77}), encoding="utf-8"
    )
    (told / "tokenizer.json").write_text("{}", encoding="utf-8")
    found = open_source(str(MEGATRON / "tp2-pp2"), tmp_path / "source", told)
    assert found.config is not None
    assert found.config.get("max_position_embeddings") == 77
    assert found.tensors.keys() == usual.tensors.keys()
    assert "tokenizer.json" in found.source.files


@pytest.mark.parametrize(
    ("target", "config", "sentence"),
    [
        (MEGATRON / "critic", None, "is a critic, and no engine serves one"),
        (MEGATRON / "plain-dcp", None, "do not say num_layers, so no model can be built from it"),
        (MEGATRON / "dense", {}, "a model of the type None are not known here"),
        (MEGATRON / "dense", [], "config.json is not an object"),
        (MEGATRON / "dense", "nothing", "config.json cannot be read: No such file or directory"),
        (CHECKPOINTS / "tiny-llama", {}, "--set hf-config is for Megatron runs, and"),
    ],
)
def test_what_cannot_be_a_source_is_said(target: Path, config: object, sentence: str, tmp_path: Path) -> None:
    told = None if config is None else tmp_path
    if config is not None and config != "nothing":
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CkptcheckError) as caught:
        open_source(str(target), tmp_path / "source", told)
    assert sentence in caught.value.message


def test_an_engines_tensor_is_traced_to_what_it_is_made_of(tmp_path: Path) -> None:
    shapes = {**dict.fromkeys(["q_proj"], (128, 64)), **dict.fromkeys(["k_proj", "v_proj"], (64, 64))}
    at = "model.layers.1"
    held = {
        f"{at}.self_attn.{part}.weight": Weight(f"{at}.self_attn.{part}.weight", shapes[part], "F32") for part in shapes
    }
    for expert in range(11):
        for part in ("gate_proj", "up_proj", "down_proj"):
            name = f"{at}.mlp.experts.{expert}.{part}.weight"
            held[name] = Weight(name, (4, 4), "F32")
    qkv = [weight.name for weight in trainer_weights(f"{at}.self_attn.qkv_proj.weight", held)]
    assert qkv == [f"{at}.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    experts = [weight.name for weight in trainer_weights(VLLM_EXPERTS, held)]
    assert experts[:3] == [
        f"{at}.mlp.experts.{number}.weight" for number in ("0.gate_proj", "0.up_proj", "1.gate_proj")
    ]
    assert experts[-1] == f"{at}.mlp.experts.10.up_proj.weight"  # in the order of numbers
    assert trainer_weights("model.rotary_emb.cos_sin_cache", held) == ()


def test_the_part_that_was_hit_is_named_alone(tmp_path: Path) -> None:
    trace = run_trial_case({"trainer": {"megatron": True}, "ranks": 1}, tmp_path / "trial")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    whole, part = describe_origin(trace, [name]), describe_origin(trace, [name], [(64, 70), (96, 100)], 128)
    assert whole.startswith(
        "; it is built from model.layers.1.self_attn.{q_proj,k_proj,v_proj}.weight, which megatron holds as"
    )
    assert part.startswith("; that is model.layers.1.self_attn.{k_proj,v_proj}.weight, which")
    assert part.endswith("decoder.layers.1.self_attention.linear_qkv.weight (TP ranks 0-1, PP rank 1)")
    assert "{q_proj,k_proj,v_proj}" in describe_origin(
        trace, [name], [(64, 70)], 100
    )  # ranks that do not share evenly: all are named


def test_an_engine_with_names_of_its_own_is_not_judged_by_names(tmp_path: Path) -> None:
    from dataclasses import replace

    trace = run_trial_case({}, tmp_path / "trial")
    assert unmatched_weights(trace) == []
    sync = trace.syncs[0]
    renamed = {(rank, f"other{number}"): entry for number, ((rank, _), entry) in enumerate(sync.manifest.items())}
    assert unmatched_weights(replace(trace, cold_manifest=renamed, syncs=(replace(sync, manifest=renamed),))) is None


def test_low_rank_queries_and_keys_are_one_matrix_of_either_engine() -> None:
    at = "model.layers.0.self_attn"
    held = {name: Weight(name, (4, 4), "F32") for name in (f"{at}.q_a_proj.weight", f"{at}.kv_a_proj_with_mqa.weight")}
    for whole in ("fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa"):  # vLLM 0.32, SGLang 0.5.23
        assert [each.name for each in trainer_weights(f"{at}.{whole}.weight", held)] == list(held)
    mixtral = {
        name: Weight(name, (4, 4), "F32")
        for name in (f"a.experts.{n}.w{part}.weight" for n in (0, 1) for part in (1, 2, 3))
    }
    assert [each.name for each in trainer_weights("a.experts.w13_weight", mixtral)] == [
        f"a.experts.{n}.w{part}.weight" for n in (0, 1) for part in (1, 3)
    ]


def test_text_is_of_the_tokenizer_or_none(smollm2: Path, tmp_path: Path) -> None:
    from ckptcheck.checkpoint.open import open_checkpoint

    text = TrialTokenizer(open_checkpoint(str(smollm2)).source)
    prompt = text.encode_prompt(49152)
    assert text.decode([prompt]) == ["The capital of France is Paris, and the capital of Italy is"]
    assert text.encode_prompt(100) == ()  # ids that the model has no rows for
    bare = TrialTokenizer(open_checkpoint(str(live.write("llama", tmp_path / "llama"))).source)
    assert bare.encode_prompt(512) == ()
    assert bare.decode([(1, 2)]) == [""]


def test_the_roots_of_other_spellings_are_known() -> None:
    names = [
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "backbone.layers.1.mixer.A_log",
        "model.layers.0.mamba.A_log",
        "backbone.layers.1.mixer.k_proj.weight",
    ]
    held = {name: Weight(name, (4, 4), "F32") for name in names}

    def sources(name: str) -> list[str]:
        return [weight.name for weight in trainer_weights(name, held)]

    assert sources("language_model.model.layers.0.self_attn.qkv_proj.weight") == names[:1]
    assert sources("visual.blocks.0.attn.qkv.weight") == names[1:2]
    assert sources("model.layers.1.mixer.A") == names[2:3]
    assert sources("model.layers.0.mamba.A") == names[3:4]
    assert sources("model.layers.1.mixer.qkv_proj.weight") == names[4:]
    assert sources("model.layers.7.mixer.A") == []
