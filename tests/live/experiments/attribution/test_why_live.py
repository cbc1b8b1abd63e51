"""The cause of a gap is named on the real vLLM and transformers, and none on a healthy pair; one engine process for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import live
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.attribution.live_backend import CheckpointRef, LiveBackend
from ckptcheck.live.experiments.attribution.search import Attribution, SearchResult, run_search
from ckptcheck.live.experiments.record import record_rollouts
from ckptcheck.live.experiments.scoring import score_rollouts
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.prompts import make_synthetic_prompts
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "attribution"]
LENGTH, RESPONSE = 200, 24
FLOOR = 1e-4


class Kept:
    """A side that a world may close, and that lives on for the next test."""

    def __init__(self, side: object) -> None:
        self.side = side

    def __getattr__(self, name: str) -> object:
        return getattr(self.side, name)

    def close(self) -> None:
        pass


class Bench:
    """An engine process and a trainer process for the module, and checkpoints with one thing wrong."""

    def __init__(self, folder: Path, exchange: TensorExchange) -> None:
        self.folder, self.exchange = folder, exchange
        self.starts: list[str] = []
        self.own = live.write("qwen3-moe", folder / "own")
        self._engine: Engine | None = None
        self._trainer: RemoteTrainer | None = None
        self._worlds = 0

    def other(self, name: str, config: dict[str, Any] | None = None, swapped: tuple[str, str] | None = None) -> Path:
        """Write the checkpoint with another config or two weights swapped."""
        made = live.write("qwen3-moe", self.folder / name)
        if config:
            path = made / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        if swapped:
            weights = load_file(made / "model.safetensors")
            one, other = swapped
            weights[one], weights[other] = weights[other], weights[one]
            save_file(weights, made / "model.safetensors")
        return made

    def engine(self, checkpoint: Path, dtype: str = "float32", head: bool = False) -> Engine:
        self.starts.append(checkpoint.name)
        self._engine = registry.start_engine(
            "vllm", checkpoint, dtype=dtype, context_len=LENGTH, replaces=self._engine,
            switches=Switches(head_fp32=True) if head else None, scratch=(self.exchange.folder, self.folder),
        )  # fmt: skip
        return self._engine

    def trainer(self, dtype: str = "float32", head: bool = False) -> RemoteTrainer:
        host = self._trainer.host if self._trainer is not None else None
        self._trainer = start_transformers(
            open_checkpoint(str(self.own)),
            self.exchange,
            dtype=dtype,
            head_fp32=head,
            process=TrainerProcess(host=host),
        )
        return self._trainer

    def rollouts(
        self, engine: Engine, trainer: Trainer, sampling: Sampling, heat: float = 1.0, length: int = 24
    ) -> Rollouts:
        about = Metadata(model="tiny", logprobs="raw", vocabulary=512, max_model_len=LENGTH)
        return score_rollouts(
            record_rollouts(engine, make_synthetic_prompts(512, length, 4), sampling, about), trainer, temperature=heat
        )

    def world(self, rollouts: Rollouts, served: Path, trainer: Trainer) -> LiveBackend:
        self._worlds += 1
        folder = self.folder / f"world-{self._worlds}"
        folder.mkdir()
        configs = [json.loads((place / "config.json").read_text()) for place in (served, self.own)]

        def start_engine(other: Path | None, dtype: str | None, head: bool, _: Engine | None) -> Engine:
            return cast(Engine, Kept(self.engine(other or served, dtype or "float32", head)))

        def start_trainer(dtype: str | None, head: bool, _: Trainer | None) -> Trainer:
            return trainer if dtype is None and not head else self.trainer(dtype or "float32", head)

        return LiveBackend(
            rollouts, folder, engine=(start_engine, CheckpointRef(served, configs[0])),
            trainer=(start_trainer, CheckpointRef(self.own, configs[1])),
        )  # fmt: skip

    def close(self) -> None:
        for side in (self._engine, self._trainer):
            if side is not None:
                side.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    needs_engine("vllm")
    needs_engine("megatron")
    with TensorExchange() as exchange:
        made = Bench(tmp_path_factory.mktemp("why"), exchange)
        try:
            yield made
        finally:
            made.close()


def told(climbed: SearchResult) -> list[tuple[str, str]]:
    """Return code and message of what is said."""
    report = run_rules(Attribution("tiny", climbed, has_measured_floor=True), RULES)
    assert not report.crashed
    return [(finding.code, finding.message) for finding in report.findings]


def kept(side: object) -> Any:
    return cast(Any, Kept(side))


def test_a_healthy_pair_has_no_cause_and_raw_logprobs_against_a_trainer_that_divides_are_named(bench: Bench) -> None:
    engine, trainer = bench.engine(bench.own), kept(bench.trainer())
    healthy = bench.rollouts(engine, trainer, Sampling(1.0, max_tokens=RESPONSE, seed=1))
    with bench.world(healthy, bench.own, trainer) as world:
        found = run_search(world, EXPERIMENTS, FLOOR)
    assert found.is_at_floor
    assert told(found) == []
    divided = bench.rollouts(engine, trainer, Sampling(0.7, max_tokens=RESPONSE, seed=1), heat=0.7)
    with bench.world(divided, bench.own, trainer) as world:
        found = run_search(world, EXPERIMENTS, FLOOR)
    assert [step.name for step in found.causes] == ["temperature"]
    assert [code for code, _ in told(found)] == ["ATT001"]
    assert "vanishes at T = 1: the engine returned raw logprobs" in told(found)[0][1]
    assert bench.starts == ["own"], "no experiment with the engine was needed"


def test_a_trainer_alone_tells_which_tokens_an_engine_was_not_given(bench: Bench) -> None:
    trainer = kept(bench.trainer())
    rows = [Rollout((1, *tokens), 12, engine=[-1.0] * 29) for tokens in make_synthetic_prompts(512, 40, 3)]
    scored = score_rollouts(build_rollouts(rows, Metadata(model="tiny", vocabulary=512)), trainer)

    def told_less(tokens: list[int], place: int, first: int) -> float:
        return cast(float, trainer.score([tokens[first : place + 1]])[0][-1])

    for name, least in (("first token", lambda place: 1),):
        values = np.array(scored.columns["trainer_logprobs"])
        for number in range(scored.sequence_count):
            where = scored.sequence(number)
            tokens = scored.tokens[where].tolist()
            for place in range(12, len(tokens)):
                values[where.start + place] = told_less(tokens, place, least(place))
        world = LiveBackend(
            scored.with_columns(None, engine_logprobs=values), bench.folder,
            trainer=(lambda *_: trainer, CheckpointRef(bench.own, {"bos_token_id": 1})),
        )  # fmt: skip
        found = run_search(world, EXPERIMENTS, FLOOR)
        assert [step.name for step in found.causes] == [name]
        assert found.remaining_gap < FLOOR


def test_another_rope_theta_in_the_engines_config_is_named_once_the_weights_are_equal(bench: Bench) -> None:
    served = bench.other("rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
    engine, trainer = bench.engine(served), kept(bench.trainer())
    rollouts = bench.rollouts(engine, trainer, Sampling(1.0, max_tokens=RESPONSE, seed=2))
    with bench.world(rollouts, served, trainer) as world:
        found = run_search(world, EXPERIMENTS, FLOOR)
    assert [step.name for step in found.causes] == ["config"]
    assert "the engine's says rope_theta 100, and 10000 in the trainer" in told(found)[0][1]
    assert found.remaining_gap < 3 * FLOOR
    assert bench.starts[-3:] == ["rope", "trainer-with-engine-config", "engine-with-trainer-config"]


def test_two_experts_that_are_swapped_in_the_engines_checkpoint_are_named(bench: Bench) -> None:
    one, other = (f"model.layers.1.mlp.experts.{expert}.down_proj.weight" for expert in (0, 3))
    served = bench.other("swapped", swapped=(one, other))
    engine, trainer = bench.engine(served), kept(bench.trainer())
    rollouts = bench.rollouts(engine, trainer, Sampling(1.0, max_tokens=RESPONSE, seed=3))
    with bench.world(rollouts, served, trainer) as world:  # started anew: it was not kept
        found = run_search(world, EXPERIMENTS, FLOOR)
    assert [step.name for step in found.causes] == ["weights"]
    assert [code for code, _ in told(found)] == ["ATT001"]
    assert "1 tensor differs: model.layers.1.mlp.experts." in told(found)[0][1]


def test_caches_that_a_sync_left_stale_are_a_lost_state_of_the_engine(bench: Bench) -> None:
    engine, trainer = bench.engine(bench.own), bench.trainer()
    warm = make_synthetic_prompts(512, 140, 4)
    engine.generate(warm, Sampling(0.0, max_tokens=1))  # fills the prefix cache with the old weights' keys and values
    trainer.perturb(0.2, seed=1)
    assert engine.update_weights(trainer.export(1 << 20), "reload").ok
    rollouts = bench.rollouts(engine, trainer, Sampling(1.0, max_tokens=RESPONSE, seed=4), length=140)
    saved = bench.folder / "synced"
    trainer.save(saved)
    with bench.world(rollouts, saved, kept(trainer)) as world:
        found = run_search(world, EXPERIMENTS, FLOOR)
    assert [step.name for step in found.causes] == ["the engine again"]
