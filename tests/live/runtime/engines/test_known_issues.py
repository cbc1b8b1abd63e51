"""What is known of versions of engines: the file is sound, and an entry speaks only of what it is about."""

from __future__ import annotations

import re

import pytest

from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.engines.base import EngineInfo, Kind, TensorDigest
from ckptcheck.live.runtime.engines.known_issues import (
    EngineIdentity,
    detect_traits,
    load_known_issues,
    traits_of_server,
)

TRAITS = {"cuda", "cpu", "plain", "stock", "tied", "draft", "dense", "experts", "int4", "int8", "fp8", "vision"}


def entry(name: str, dtype: str = "BF16", place: str = "1+0", kind: Kind = "parameter") -> TensorDigest:
    return TensorDigest(name, 0, kind, dtype, (2, 2), 8, "00", place)


def test_every_entry_can_fit_something_and_says_where_it_was_seen_and_what_to_do() -> None:
    assert load_known_issues()
    for fault in load_known_issues():
        assert fault.engine in ("vllm", "sglang")
        assert fault.traits <= TRAITS
        assert fault.traits - {"cuda", "cpu"} or fault.architecture, (
            "one that concerns every model would warn about every model"
        )
        re.compile(fault.architecture)
        assert re.search(r"^[\w.-]+/[\w.-]+#\d+|^ckptcheck", fault.seen), fault
        assert fault.what[0] not in " ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        assert not fault.what.endswith(".")
        assert fault.instead
        architecture = fault.architecture.partition("|")[0]
        assert fault.applies_to(EngineIdentity(fault.engine, fault.since or "1", architecture, fault.traits))


def test_no_fault_is_told_twice() -> None:
    """Whatever an engine is, one entry speaks of its experts, one of its head, and so on."""
    for version in ("0.20.0", "0.25.1", "0.32.0"):
        for device in ("cpu", "cuda"):
            running = EngineIdentity("vllm", version, "Qwen3MoeForCausalLM", frozenset({device, "stock", "experts"}))
            assert sum(fault.applies_to(running) for fault in load_known_issues()) <= 1


@pytest.mark.parametrize(
    ("engine", "version", "held", "number"),
    [
        ("vllm", "0.32.0", {"cpu", "stock", "tied", "dense"}, 1),
        ("vllm", "0.32.0", {"cpu", "plain", "tied", "dense"}, 0),
        ("vllm", "0.33.0", {"cpu", "stock", "tied"}, 0),
        ("vllm", "0.19.1", {"cuda", "experts"}, 0),
        ("vllm", "0.20.0+cu129", {"cuda", "experts"}, 1),
        ("sglang", "0.5.17", {"cuda", "experts", "int4"}, 1),
        ("sglang", "0.5.23", {"cuda", "experts", "int4"}, 0),
        ("sglang", "unknown", {"draft"}, 0),
        ("sglang", "0.5.23", {"cuda", "stock", "vision"}, 1),
        ("vllm", "0.33.0", {"cuda", "stock", "vision"}, 1),
        ("vllm", "0.26.0", {"cuda", "stock", "vision"}, 0),
    ],
)
def test_versions_and_traits_decide(engine: str, version: str, held: set[str], number: int) -> None:
    running = EngineIdentity(engine, version, "LlamaForCausalLM", frozenset(held))
    assert sum(fault.applies_to(running) for fault in load_known_issues()) == number


def test_versions_are_compared_by_number() -> None:
    (fault,) = (each for each in load_known_issues() if "mixer.D" in each.what)
    found = {
        version: fault.applies_to(EngineIdentity("vllm", version, "NemotronHForCausalLM", frozenset({"cuda"})))
        for version in ("0.21.9", "0.22", "0.22.0", "0.22.1+cu130", "0.23.0rc1", "0.9", "", "main")
    }
    assert [version for version, concerned in found.items() if concerned] == ["0.22", "0.22.0", "0.22.1+cu130"]


def test_traits_are_read_from_what_an_engine_holds() -> None:
    info = EngineInfo("vllm", "1", "bfloat16", 1, "X", {"device": "cpu", "mode": "stock"})
    entries = [
        entry("lm_head.weight"), entry("model.embed_tokens.weight"),
        entry("model.layers.0.mlp.experts.w13_weight_packed", "I32", "2+0"),
        entry("model.layers.0.self_attn.o_proj.weight", "I8", "3+0"), entry("draft:fc.weight", place="4+0"),
    ]  # fmt: skip
    found = detect_traits(info, {(0, each.name): each for each in entries})
    assert found == {"cpu", "stock", "tied", "int4", "experts", "int8", "dense", "draft"}
    handed = {(0, "a.azp_adj"): entry("a.azp_adj", "F32")}
    assert detect_traits(info, handed) == {"cpu", "stock", "int8", "dense"}
    plain = [entry("lm_head.weight"), entry("model.embed_tokens.weight", place="5+0")]
    assert detect_traits(info, {(0, each.name): each for each in plain}) == {"cpu", "stock"}


def test_of_a_server_only_its_words_are_known() -> None:
    assert traits_of_server(["cuda"], "Qwen3MoeForCausalLM") == {"cuda", "stock", "experts"}
    assert traits_of_server([""], "Glm4ForCausalLM") == {"stock"}, "GLM-4 is dense"
    assert traits_of_server(["cuda", "draft"], "LlamaForCausalLM", "w8a8_fp8") == {
        "cuda",
        "stock",
        "draft",
        "fp8",
        "dense",
    }
    assert traits_of_server([""], "Qwen3MoeForCausalLM", "moe_wna16") == {"stock", "experts", "int4"}
    packed = ["model.layers.0.mlp.experts.w13_weight_packed", "model.layers.0.self_attn.o_proj.weight"]
    assert traits_of_server([""], "", "compressed-tensors", packed) == {"stock", "experts", "int4"}


def test_versions_of_absurd_length_are_versions_too() -> None:
    assert not any(
        fault.applies_to(EngineIdentity("sglang", "9" * 5000, "LlamaForCausalLM")) for fault in load_known_issues()
    )


def test_a_trial_offers_what_it_runs() -> None:
    assert RefitTrace("a").view_for("engines") is None
    held = {(0, "a.experts.w13_weight"): entry("a.experts.w13_weight")}
    found = {}
    for mode in ("plain", "stock"):
        info = EngineInfo("vllm", "0.32.0", "float32", 1, "Qwen3MoeForCausalLM", {"device": "cpu", "mode": mode})
        trace = RefitTrace("a", engine=info, cold_manifest=held)
        assert trace.view_for("values") is None
        (running,) = trace.view_for("engines") or ()
        assert running == EngineIdentity("vllm", "0.32.0", "Qwen3MoeForCausalLM", frozenset({"cpu", mode, "experts"}))
        found[mode] = sum(fault.applies_to(running) for fault in load_known_issues())
    assert found == {"plain": 0, "stock": 1}
