"""How a server spreads a model, as SGLang and vLLM tell it, and what is started here to be held against it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.environments.interpreter import Interpreter
from ckptcheck.live.runtime.servers import reference
from ckptcheck.live.runtime.servers.base import ServerInfo
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from ckptcheck.live.runtime.servers.layout import ServerLayout
from tests.doubles.junk_server import Answer, JunkServer, sglang, vllm
from tests.paths import ROOT

RULES = rule_loader.load_rules()
CHECKPOINTS = ROOT / "fixtures/checkpoints"
INFO = {"version": "0.5.23", "dtype": "float32", "tp_size": 4, "device": "cuda"}
PLAIN = {
    "pp_size": 1, "dp_size": 1, "ep_size": 1, "attn_dp_size": 1, "enable_dp_attention": False, "quantization": None,
    "speculative_algorithm": None, "moe_dp_size": 1, "moe_dense_tp_size": None, "attn_cp_size": 1, "dcp_size": 1, "dwdp_size": 1,
    "enable_dp_lm_head": False, "enable_eplb": False, "ep_num_redundant_experts": 0, "init_expert_location": "trivial",
    "lora_paths": None, "model_impl": "auto", "json_model_override_args": "{}",
}  # fmt: skip
"""What a SGLang 0.5.23 says that was given nothing but --tp-size."""


def server_info(answers: dict[str, Answer]) -> ServerInfo:
    with JunkServer(answers) as server:
        return detect_engine(ServerClient(server.url), seconds=5).info(seconds=5)


@pytest.mark.parametrize(
    ("told", "layout"),
    [
        ({}, ServerLayout(4)),
        ({"pp_size": 2}, ServerLayout(4, pp=2)),
        ({"dp_size": 2}, ServerLayout(4, copies=2)),
        ({"attn_dp_size": 2, "enable_dp_attention": True}, ServerLayout(4, attention_groups=2)),
        ({"dp_size": 2, "attn_dp_size": None, "enable_dp_attention": True}, ServerLayout(4, attention_groups=2)),  # before 0.5.22
        ({"ep_size": 4}, ServerLayout(4, ep=4)),
        ({"quantization": "fp8"}, ServerLayout(4, quantization="fp8")),
        ({"speculative_algorithm": "EAGLE"}, ServerLayout(4, draft="EAGLE")),
        ({"enable_eplb": True}, ServerLayout(4, other_settings=("enable_eplb=True",))),
        (
            {"moe_dense_tp_size": 1, "lora_paths": [{"a": 1}]},
            ServerLayout(4, other_settings=("moe_dense_tp_size=1", "lora_paths=[{'a': 1}]")),
        ),
    ],
)  # fmt: skip
def test_sglang_tells_it(told: dict[str, Any], layout: ServerLayout) -> None:
    found = server_info(sglang(server_info=INFO | PLAIN | told)).layout
    assert set(found.other_settings) == set(layout.other_settings)
    assert found == ServerLayout(**{**vars(layout), "other_settings": found.other_settings})


@pytest.mark.parametrize(
    ("told", "layout"),
    [
        ({}, ServerLayout(2)),
        ({"parallel_config": {"pipeline_parallel_size": 2}}, ServerLayout(2, pp=2)),
        ({"parallel_config": {"data_parallel_size": 2}}, ServerLayout(2, copies=2)),
        ({"parallel_config": {"data_parallel_size": 2, "is_moe_model": True}},
         ServerLayout(2, other_settings=("data_parallel_size=2 with experts",))),
        ({"parallel_config": {"enable_expert_parallel": True}}, ServerLayout(2, ep=2)),
        ({"model_config": {"quantization": "fp8"}}, ServerLayout(2, quantization="fp8")),
        ({"speculative_config": {"method": "eagle3"}}, ServerLayout(2, draft="eagle3")),
        ({"lora_config": {"max_loras": 1}}, ServerLayout(2, other_settings=("lora_config",))),
    ],
)  # fmt: skip
def test_vllm_tells_it(told: dict[str, Any], layout: ServerLayout) -> None:
    sizes = {"tensor_parallel_size": 2, **told.get("parallel_config", {})}
    assert server_info(vllm(server_info={"vllm_config": told | {"parallel_config": sizes}})).layout == layout


def test_vllm_says_on_what_it_runs() -> None:
    assert server_info(vllm()).device == "cpu"
    assert server_info(vllm(server_info={"vllm_config": {"device_config": {"device": "cuda:0"}}})).device == "cuda"


def test_an_older_sglang_has_the_same_under_another_name() -> None:
    answers = sglang()
    answers["/get_server_info"] = answers.pop("/server_info")
    found = server_info(answers)
    assert (found.version, found.dtype, found.layout) == ("0.5.23", "float32", ServerLayout(1))


@pytest.mark.parametrize(
    "told",
    [{"quantization": "--trust-remote-code"}, {"dtype": "-x"}, {"tp_size": 1 << 40}, {"tp_size": -1}, {"quantization": "a b"}],
)  # fmt: skip
def test_what_would_be_handed_to_a_command_line_is_not_taken_from_anybody(told: dict[str, Any]) -> None:
    found = server_info(sglang(server_info=INFO | told))
    assert (found.version, found.dtype, found.layout) == ("", "", ServerLayout())


def test_whose_a_tensor_is() -> None:
    """As SGLang 0.5.23 spells two roles on one rank, and one role alone."""
    place = {"tp_rank": 0, "pp_rank": 0, "dp_rank": 1}
    roles = [{**place, "role": "target"}, {**place, "role": "draft"}]
    both = {"checksums": {"draft.fc.weight": "1", "norm.weight": "2"}, "parallelism_info": roles}
    alone = {"checksums": {"draft.fc.weight": "3"}, "parallelism_info": {"tp_rank": 1, "role": "target"}}
    with JunkServer(sglang(weights_checker={"success": True, "ranks": [both, alone]})) as server:
        found = detect_engine(ServerClient(server.url), seconds=5).checksums(seconds=5)
    assert found == {"tp0.dp1.draft/fc.weight": "1", "tp0.dp1/norm.weight": "2", "tp1/draft.fc.weight": "3"}


def test_no_rank_of_vllm_hides_another() -> None:
    told = {f"dp0:pp0:pcp{rank}:tp0:norm.weight": str(rank) for rank in (0, 1)} | {f"dp{'1' * 5000}:odd": "2"}
    with JunkServer(vllm(weight_checker={"checksums": told})) as server:
        found = detect_engine(ServerClient(server.url), seconds=5).checksums(seconds=5)
    assert found == {"tp0/norm.weight": "0", "tp0.pcp1/norm.weight": "1", f"tp0/dp{'1' * 5000}:odd": "2"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take down with which arguments a server would be started."""
    found: list[str] = []

    class Host:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def call(self, _: str, *, arguments: list[str], **__: object) -> None:
            found.extend(arguments)
            raise CkptcheckError("none is started here")

        def close(self, _: float) -> None:
            pass

    monkeypatch.setattr(reference, "WorkerClient", Host)
    monkeypatch.setattr(reference, "find_interpreter", lambda engine, _: Interpreter(engine, Path("python"), {}, {}))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return found


def reported(answers: dict[str, Answer], source: str = "tiny-llama-sharded") -> tuple[str, list[str]]:
    """Hold a server against a checkpoint; return why weights were not compared, and which faults of its version are known."""

    def no_trainer(*_: object) -> Any:
        raise CkptcheckError("no trainer")

    with JunkServer(answers) as server:
        wanted = AttachOptions([server.url], no_trainer, Timeouts(score=5), check_logprobs=False)
        report = run_rules(attach_to_servers(open_checkpoint(str(CHECKPOINTS / source)), wanted, lambda _: None), RULES)
        faults = [finding.message for finding in report.findings if finding.code == "REF033"]
        return dict(report.skipped)["REF030"].replace(server.url, "URL"), faults


def held(answers: dict[str, Answer]) -> str:
    return reported(answers)[0]


def test_known_faults_are_told_by_what_the_checkpoint_has(started: list[str]) -> None:
    _, (message,) = reported(vllm(), "tiny-qwen2-tied")
    assert "with Qwen2ForCausalLM: reload_weights leaves the packed copy of a tied head as it was" in message
    assert reported(vllm())[1] == [], "it is not tied"
    _, (message,) = reported(sglang(server_info=INFO), "tiny-w4a16")
    assert "linear layers in INT4 are repacked at the start" in message
    assert reported(sglang(server_info=INFO))[1] == []


def test_what_is_started_here_is_laid_out_as_the_server(started: list[str]) -> None:
    told = {"pp_size": 2, "dp_size": 2, "ep_size": 2, "quantization": "fp8", "speculative_algorithm": "EAGLE"}
    assert "none is started here" in held(sglang(server_info=INFO | PLAIN | told))
    line = " ".join(started)
    assert "--tp-size 4 --pp-size 2 --ep-size 2" in line
    assert "--quantization fp8" in line
    assert "EAGLE" not in line
    assert "dp-size 2" not in line
    started.clear()
    held(sglang(server_info=INFO | PLAIN | {"attn_dp_size": 2, "enable_dp_attention": True}))
    assert "--attn-dp-size 2" in " ".join(started)
    started.clear()
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "enable_expert_parallel": True}
    held(vllm(server_info={"vllm_config": {"parallel_config": sizes}}))
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 2 --enable-expert-parallel" in " ".join(started)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"ep_num_redundant_experts": 2},
         "URL is set to ep_num_redundant_experts=2, which moves weights, and the engine started here is not"),
        ({"tp_size": 9}, "URL has 9 ranks, and this machine has 8 CPUs to start as many"),
    ],
)  # fmt: skip
def test_what_cannot_be_laid_out_so_is_not_started(told: dict[str, Any], why: str, started: list[str]) -> None:
    assert held(sglang(server_info=INFO | PLAIN | told)) == why
    assert started == []
