"""Parity on the real vLLM, transformers and megatron-core: sound where all is well, and known causes are told apart.

One engine process serves the module: every set-up is a restart within it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import live
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.cli.app import build_app
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.calibrate import calibrate
from ckptcheck.live.experiments.matrix.live_matrix import MatrixRun
from ckptcheck.live.experiments.matrix.trace import MatrixTrace, Plan
from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, run_probes
from ckptcheck.live.experiments.probes.registry import COMPILING_PROBES, PROBES, select_probes
from ckptcheck.live.experiments.record import DefaultPrompts, record_rollouts
from ckptcheck.live.experiments.scoring import score_rollouts
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers import transformers
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from ckptcheck.rollouts import Metadata, read_rollouts, write_rollouts
from ckptcheck.rollouts.expert_routing import add_expert_routing
from ckptcheck.rollouts.full_vocab import add_full_vocab_logprobs
from ckptcheck.rollouts.metrics.routing import compute_routing_disagreement
from ckptcheck.rollouts.prompts import make_synthetic_prompts
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
RULES = rule_loader.load_rules()
UNLIKELY = Sampling(0.7)


class Shared:
    """Engines and trainers of the module. An engine that a run gives up is kept for the next."""

    def __init__(self, folder: Path, exchange: TensorExchange) -> None:
        self.folder, self.exchange = folder, exchange
        self._checkpoints = {name: live.write(name, folder / name) for name in ("llama", "qwen3-moe")}
        self._checkpoints["swapped"] = live.write("llama", folder / "swapped")
        weights = load_file(folder / "swapped" / "model.safetensors")
        for layer in range(2):
            gate, up = (f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up"))
            weights[gate], weights[up] = weights[up], weights[gate]
        save_file(weights, folder / "swapped" / "model.safetensors")
        self._checkpoints["misrouted"] = live.write("qwen3-moe", folder / "misrouted")
        weights = load_file(folder / "misrouted" / "model.safetensors")
        gate = "model.layers.1.mlp.gate.weight"
        weights[gate] = weights[gate][::-1].copy()
        save_file(weights, folder / "misrouted" / "model.safetensors")
        self._checkpoints["talking"] = talking(folder / "talking")
        self._engine: Engine | None = None
        self._trainer: RemoteTrainer | None = None

    def checkpoint(self, name: str) -> Checkpoint:
        return open_checkpoint(str(self._checkpoints[name]))

    def engine(self, name: str, setup: EngineSetup | None = None) -> Engine:
        setup = setup or EngineSetup()
        self._engine = registry.start_engine(
            "vllm", self._checkpoints[name], dtype=setup.dtype or "float32", context_len=setup.length or 512,
            switches=setup.switches, replaces=self._engine, scratch=(self.exchange.folder, self.folder),
        )  # fmt: skip
        return self._engine

    def trainer(self, name: str, dtype: str = "float32", head_fp32: bool = False) -> RemoteTrainer:
        host = self._trainer.host if self._trainer is not None else None
        self._trainer = start_transformers(
            self.checkpoint(name), self.exchange, dtype=dtype, head_fp32=head_fp32, process=TrainerProcess(host=host)
        )
        return self._trainer

    def probe(
        self,
        name: str,
        *probes: str,
        sampling: Sampling = UNLIKELY,
        switches: Switches | None = None,
        served: str | None = None,
    ) -> Report:
        """Run probes; served: the checkpoint that the engine has instead."""
        asking = DefaultPrompts(self.checkpoint(name))

        def beside(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
            return cast(Trainer, Kept(self.trainer(name, dtype, head_fp32)))

        def start(setup: EngineSetup, instead: Engine | None) -> Engine:
            return cast(Engine, Kept(self.engine(served or name, setup)))

        bench = ProbeEnvironment(
            asking.choose(24, 3), asking.vocabulary, self.folder, start_trainer=beside, sampling=sampling,
            setup=EngineSetup(switches or Switches()), stop_tokens=asking.stop_tokens, conversation=asking.conversation,
            response=16, long=24,
        )  # fmt: skip
        return run_rules(run_probes(name, bench, start, select_probes(probes, ())), RULES)

    def close(self) -> None:
        for side in (self._engine, self._trainer):
            if side is not None:
                side.close()


def talking(folder: Path) -> Path:
    """Write a model whose tokenizer and whose template both begin with a BOS. Of its end tokens config.json alone names one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    live.write("llama", folder)
    names = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>", "<|old|>"]
    letters = [*map(chr, range(32, 127)), "\n"]
    made = Tokenizer(
        models.WordLevel({name: place for place, name in enumerate([*names, *letters])}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.add_special_tokens(names[1:])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    template = (
        "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 5]}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": [2, 5, 7]}))
    return folder


class Kept:
    """A side that a run may close, and that lives on for the next test."""

    def __init__(self, side: object) -> None:
        self._side = side

    def __getattr__(self, name: str) -> object:
        return getattr(self._side, name)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    needs_engine("vllm")
    needs_engine("megatron")
    with TensorExchange() as exchange:
        made = Shared(tmp_path_factory.mktemp("live"), exchange)
        try:
            yield made
        finally:
            made.close()


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_a_stock_setup_has_stale_caches_and_raw_logprobs_and_nothing_else(shared: Shared) -> None:
    names = [name for name in PROBES if name not in (*COMPILING_PROBES, "ends", "prompt", "head")]
    report = shared.probe("qwen3-moe", *names, switches=Switches(async_scheduling=False))
    assert not report.crashed
    assert sorted(set(codes(report))) == ["PRB003", "PRB013"], report.findings
    assert set(report.passed) == {
        "PRB001", "PRB002", "PRB005", "PRB009", "PRB017", "PRB020",
    }  # fmt: skip
    told = "async_scheduling: vLLM 0.32.0 on CPU made it False by itself"
    assert report.skipped == (("PRB010", f"scheduling: {told}"),), "the user has it off, and the probe needs it on"
    left = next(section for section in report.sections if section.title == "Probes that could not run")
    assert left.lines == (f"scheduling: {told}",)
    ways = next(section for section in report.sections if section.title.startswith("A response of"))
    rows = {(row[0], row[1]): row[2:] for row in ways.rows}
    assert rows["keep", "kept"][:4] == ("length", 16, 5, 5)
    assert rows["keep", "kept"][4] > 1e-3  # old keys under new weights
    assert rows["keep", "cleared"][4] < 1e-4  # computed anew
    assert rows["wait", "kept"][:4] == ("length", 16, None, None)
    assert rows["abort", "kept"][:2] == ("abort", 5)


def test_which_logprobs_they_are_is_solved_from_the_trainers_logits(shared: Shared) -> None:
    processed = Switches(logprobs="processed")
    report = shared.probe("llama", "semantics", switches=processed)
    assert codes(report) == []
    assert "PRB003" in report.passed, "the job truncates nothing"
    penalty = replace(UNLIKELY, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3)
    for cut in (replace(UNLIKELY, top_k=20), replace(UNLIKELY, top_p=0.8), penalty):
        assert codes(shared.probe("llama", "semantics", sampling=cut, switches=processed)) == ["PRB003"], cut
    report = shared.probe("llama", "semantics")
    assert codes(report) == ["PRB003"]
    assert "T 1 fits best" in report.sections[0].title


def test_swapped_weights_show_and_their_cause_is_not_called_a_temperature(shared: Shared) -> None:
    report = shared.probe("llama", "semantics", "decode", sampling=Sampling(1.0), served="swapped")
    assert codes(report) == ["PRB005"]
    assert "no temperature closes the gap" in report.findings[0].message
    assert "PRB002" in report.passed, "decoding and prefill are wrong alike"


def test_a_router_whose_experts_are_in_another_order_is_found_in_its_layer(shared: Shared) -> None:
    report = shared.probe("qwen3-moe", "routing", served="misrouted")
    assert codes(report) == ["PRB020"]
    shares = [row[3] for row in report.sections[0].rows]
    assert shares[0] == 0
    assert shares[1] > 0.5


def test_end_tokens_and_conversations_of_a_checkpoint_with_a_tokenizer(shared: Shared) -> None:
    """config.json names an end token that vLLM, which goes by generation_config.json, does not know; a text gets a second BOS."""
    report = shared.probe("talking", "ends", "prompt")
    assert not report.crashed
    assert [(finding.code, finding.message) for finding in report.findings] == [
        ("PRB001", "token 7 ends a response by config.json, and the engine goes on after it"),
        (
            "PRB007",
            "a rendered conversation that is sent as a text gives other tokens than the conversation: it begins with token"
            " 1 twice",
        ),
    ]
    assert report.passed == ()


def test_the_commands_on_the_real_engine(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user calls them; only the processes are those that run already."""

    def engine(name: str, checkpoint: Path, *, replaces: object = None, **how: Any) -> Engine:
        shared._engine = start(name, checkpoint, **{**how, "replaces": shared._engine})
        return cast(Engine, Kept(shared._engine))

    def trainer(ckpt: Checkpoint, exchange: TensorExchange, *, host: object = None, **how: Any) -> Trainer:
        process = replace(how.pop("process", TrainerProcess()), host=shared._trainer and shared._trainer.host)
        shared._trainer = scorer(ckpt, exchange, process=process, **how)
        return cast(Trainer, Kept(shared._trainer))

    def parity(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(build_app(), ["parity", *arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stdout or result.stderr

    start, scorer = registry.start_engine, transformers.start_transformers
    shared.trainer("llama")
    monkeypatch.setattr(registry, "start_engine", engine)
    monkeypatch.setattr(transformers, "start_transformers", trainer)
    monkeypatch.chdir(shared.folder)
    monkeypatch.setenv("COLUMNS", "200")
    few = ("--length", "24", "--response", "6")
    hot = ("--temperature", "0.7", "--switch", "logprobs=processed")
    recorded, scored = (str(tmp_path / name) for name in ("r.safetensors", "s.safetensors"))
    assert "3 responses" in parity("record", "llama", "-o", recorded, "--number", "3", "--full", "4", *few, *hot)
    assert "3 sequences scored" in parity("score", recorded, "llama", "-o", scored)
    judged = json.loads(parity("judge", scored, "--format", "json"))
    assert "PAR029" in judged["passed"], "whole distributions, at the temperature of the logprobs"
    assert not [each for each in judged["findings"] if each["severity"] == "error"]
    small = (
        "--lengths",
        "30",
        "--batch",
        "2",
        "--set",
        "sequences=2",
        "--repeats",
        "1",
        "--response",
        "6",
        "--data",
        "synthetic",
    )
    assert "mult_prob_error" in parity("matrix", "llama", "--pairs", "transformers:vllm", *small)
    assert "sampled at temperature 0.7" in parity("probe", "llama", "--only", "semantics", *few)


def test_rollouts_are_recorded_scored_and_judged_apart(shared: Shared, tmp_path: Path) -> None:
    asking = DefaultPrompts(shared.checkpoint("llama"))
    prompts = asking.choose(30, 5)
    about = Metadata(model="llama", logprobs="raw", vocabulary=asking.vocabulary)
    engine = shared.engine("llama")
    rollouts = record_rollouts(engine, prompts, Sampling(1.0, max_tokens=12, seed=3), about, batch=2)
    rollouts = add_full_vocab_logprobs(rollouts, "engine", engine, tmp_path, number=10)
    write_rollouts(rollouts, tmp_path / "recorded.safetensors")
    scored = score_rollouts(
        read_rollouts(tmp_path / "recorded.safetensors"), shared.trainer("llama"), tokens=64, folder=tmp_path
    )
    write_rollouts(scored, tmp_path / "scored.safetensors")
    again = read_rollouts(tmp_path / "scored.safetensors")
    assert not again.defects
    assert np.abs(again.columns["engine_full_logprobs"] - again.columns["trainer_full_logprobs"]).max() < 1e-4
    command = [sys.executable, "-m", "ckptcheck", "parity", "judge", "scored.safetensors", "--format", "json"]
    first, second = (subprocess.run(command, capture_output=True, cwd=tmp_path, check=False).stdout for _ in range(2))
    assert first == second
    assert b'"mult_prob_error"' in first


def test_the_experts_of_a_recorded_token_are_those_of_the_trainer(shared: Shared, tmp_path: Path) -> None:
    engine = shared.engine("qwen3-moe")
    prompts = DefaultPrompts(shared.checkpoint("qwen3-moe")).choose(10, 2)
    rollouts = add_expert_routing(
        record_rollouts(engine, prompts, Sampling(1.0, max_tokens=5, seed=1), Metadata()), "engine", engine
    )
    write_rollouts(score_rollouts(rollouts, shared.trainer("qwen3-moe")), tmp_path / "routed.safetensors")
    found = compute_routing_disagreement(read_rollouts(tmp_path / "routed.safetensors"))
    assert found is not None
    assert found[0].tolist() == [0, 0]


def test_the_matrix_and_the_floor_of_a_pair_that_agrees(shared: Shared, tmp_path: Path) -> None:
    asking = DefaultPrompts(shared.checkpoint("llama"))
    engine, trainer = shared.engine("llama"), shared.trainer("llama")
    plan = Plan((40,), ("synthetic",), ("greedy", "sampling"), (1, 3), repeats=1, response=8, sequences=3)
    ledger: dict[Any, Any] = {}
    MatrixRun(plan, {"vllm": engine}, {"transformers": trainer}, asking.prompts, ledger).run()
    noise = calibrate(engine, trainer, asking.prompts(24, "synthetic", 3), response=8)
    assert set(noise.metrics) == {
        "engine-repeat", "engine-batch", "engine-decode", "trainer-repeat", "trainer-batch", "trainer-engine",
    }  # fmt: skip
    assert all(each.abs_max < 1e-4 for each in noise.metrics.values())
    floor = noise.metrics["trainer-engine"].mult_prob_error
    trace = MatrixTrace("llama", ledger, floor={"transformers:vllm": floor})
    assert codes(run_rules(trace, RULES)) == []
    assert len(trace.values) == 4
    assert all(1 <= value.error < 1.0001 for value in trace.values.values())


def test_seeded_requests_whose_prompts_do_not_fit_into_a_step(shared: Shared) -> None:
    """vLLM 0.32 cannot rewind a generator on a CPU, and ended where a seeded prompt was computed in pieces."""
    prompts = make_synthetic_prompts(512, 100, 8)
    asked = [Sampling(1.0, max_tokens=3, seed=seed, ignore_eos=True) for seed in range(8)]
    made = shared.engine("llama").generate(prompts, asked)
    assert len({each.tokens for each in made}) == 8
    engine = shared.engine("llama", EngineSetup(Switches(chunk=64)))
    first, again = (engine.generate(prompts, asked) for _ in range(2))
    assert [each.tokens for each in first] == [each.tokens for each in again]
    assert len({each.tokens for each in first}) == 8


def test_a_bfloat16_head_is_told_from_a_float32_one_on_either_side(shared: Shared) -> None:
    report = shared.probe("llama", "head", switches=Switches(head_fp32=True))
    rows = report.sections[0].rows
    assert [row[:2] for row in rows] == [
        ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "float32"),
    ]  # fmt: skip
    assert len({row[3] for row in rows}) == 4, "every combination computes something else"


def test_megatron_says_of_whole_distributions_experts_and_draws_what_transformers_says(
    shared: Shared, tmp_path: Path
) -> None:
    prompts: Sequence[Sequence[int]] = DefaultPrompts(shared.checkpoint("qwen3-moe")).choose(12, 2)
    one = shared.trainer("qwen3-moe")
    routes, tables = one.expert_routing(prompts[0]), load_file(one.score_full_vocab(prompts, tmp_path))
    drawn, heat = one.sample(prompts, 4, temperature=0.8, seed=1), one.score(prompts, temperature=0.5)
    other = start_megatron(shared.checkpoint("qwen3-moe"), shared.exchange)
    try:
        assert [[set(row) for row in layer] for layer in other.expert_routing(prompts[0])] == [
            [set(row) for row in layer] for layer in routes
        ]
        found = load_file(other.score_full_vocab(prompts, tmp_path))
        assert all(np.abs(found[name] - table).max() < 1e-4 for name, table in tables.items())
        assert [len(each) for each in other.sample(prompts, 4, temperature=0.8, seed=1)] == [4, 4]
        assert other.sample(prompts, 3, temperature=0) == one.sample(prompts, 3, temperature=0)
        apart = [
            abs(a - b)
            for x, y in zip(other.score(prompts, temperature=0.5), heat, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
        assert max(apart) < 1e-4
    finally:
        other.close()
    assert [len(each) for each in drawn] == [4, 4]
    raw = one.score(prompts)
    assert raw != heat
