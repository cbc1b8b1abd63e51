"""What a live world asks of its sides: the right tokens, each once, and no start that makes no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sin
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import EngineChange, TrainerChange
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.attribution.live_backend import (
    CheckpointRef,
    LiveBackend,
    describe_config_differences,
    link_checkpoint,
)
from ckptcheck.live.experiments.attribution.search import run_search
from ckptcheck.live.runtime.engines.base import Engine, SequenceScores, TensorDigest
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.trainers.base import Trainer, Weight
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, SamplingInfo, ScorerInfo, build_rollouts
from ckptcheck.rollouts.metrics.sampling_distribution import normal, processed

IDS = 16
SEQUENCES = [tuple((3 * place + 5 * number) % IDS for place in range(8 + 4 * number)) for number in range(3)]
PROMPTS = (2, 4, 3)


def row(before: Sequence[int], off: float = 0.0) -> np.ndarray:
    """Return raw logprobs [IDS] of what follows some tokens: of all of them, and of how many there are."""
    told = sum((place + 1) * token for place, token in enumerate(reversed(before))) + 7 * before[0]
    return cast(np.ndarray, normal(np.array([[sin(told + each * (1 + off)) for each in range(IDS)]])))[0]


def logprobs(tokens: Sequence[int], heat: float = 1.0, off: float = 0.0) -> list[float]:
    table = np.stack([row(tokens[:place], off) for place in range(1, len(tokens))])
    made = processed(table, heat)
    return [float(made[place, token]) for place, token in enumerate(tokens[1:])]


class Log(list[str]):
    """What both sides were asked, in order."""


class StubTrainer:
    def __init__(self, log: Log, dtype: str = "float32") -> None:
        self.log, self.info = log, SimpleNamespace(dtype=dtype)
        self.fails: BaseException | None = None

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        self.log.append(f"score {len(sequences)} at {temperature:g}")
        if self.fails is not None:
            raise self.fails
        return [tuple(logprobs(tokens, temperature)) for tokens in sequences]

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        tables = [np.stack([row(tokens[:place]) for place in range(1, len(tokens))]) for tokens in sequences]
        path = folder / "full.safetensors"
        save_file({str(place): table.astype("<f4") for place, table in enumerate(tables)}, path)
        return path

    def weights(self) -> list[Weight]:
        return [Weight(f"model.layers.0.mlp.{part}_proj.weight", (2, 2), "F32") for part in ("gate", "up")]

    def save(self, folder: Path) -> None:
        self.log.append("save")
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"trainer's")
        (folder / "config.json").write_text("{}")

    def close(self) -> None:
        self.log.append("close trainer")


class StubEngine:
    def __init__(
        self, log: Log, off: float = 0.0, stale: float = 0.0, opaque: str = "", dtype: str = "float32"
    ) -> None:
        self.log, self.off, self.stale, self.opaque = log, off, stale, opaque
        self.info = SimpleNamespace(dtype=dtype)
        self.ignored_switches: Mapping[str, str] = {}

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        self.log.append(f"follow {len(sequences)}")
        return [tuple(logprobs(tokens, off=self.off + self.stale)[prompt - 1 :]) for tokens in sequences]

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[SequenceScores]:
        self.log.append(f"prefill {len(sequences)}")
        return [SequenceScores(tuple(logprobs(tokens, off=self.off))) for tokens in sequences]

    score_full_vocab = StubTrainer.score_full_vocab

    def reset_prefix_cache(self) -> None:
        self.log.append("reset")
        self.stale = 0.0

    def digest_tensors(self) -> dict[tuple[int, str], TensorDigest]:
        self.log.append("manifest")
        name = "model.layers.0.mlp.gate_up_proj.weight"
        digest = "" if self.opaque else f"{self.off:032.6f}"
        return {(0, name): TensorDigest(name, 0, "parameter", "F32", (4, 2), 32, digest, "", self.opaque)}

    def close(self) -> None:
        self.log.append("close engine")


def rolled(heat: float = 1.0, off: float = 0.0, told: str = "raw", divides: float = 1.0) -> Rollouts:
    """Return rollouts of an engine that is `off`, and of a trainer that divides."""
    rows = [
        Rollout(
            tokens, prompt, logprobs(tokens, heat if told == "processed" else 1.0, off)[prompt - 1 :],
            logprobs(tokens, divides)[prompt - 1 :],
        )
        for tokens, prompt in zip(SEQUENCES, PROMPTS, strict=True)
    ]  # fmt: skip
    about = Metadata(
        trainer=ScorerInfo("stub", dtype="float32", temperature=divides), engine=ScorerInfo("stub", dtype="float32"),
        sampling=SamplingInfo(heat), logprobs=cast(Any, told), vocabulary=IDS,
    )  # fmt: skip
    return build_rollouts(rows, about, double=True)


class Stage:
    """Checkpoints of both sides, and how they start: `off` is what is wrong with the engine's."""

    def __init__(self, folder: Path, off: float = 0.0, dtype: str = "float32") -> None:
        self.log, self.off, self.dtype, self.folder = Log(), off, dtype, folder
        self.opaque = ""
        for side in ("engine", "trainer"):
            (folder / f"{side}-checkpoint").mkdir()
            (folder / f"{side}-checkpoint" / "model.safetensors").write_bytes(f"{side}'s".encode())
            (folder / f"{side}-checkpoint" / "config.json").write_text("{}")
        self.configs: dict[str, dict[str, Any]] = {"engine": {}, "trainer": {}}
        self.trainer: StubTrainer | None = None

    def start_trainer(self, dtype: str | None, head: bool, instead: Trainer | None) -> Trainer:
        self.log.append(f"trainer {dtype or self.dtype}{' head' if head else ''}")
        self.trainer = StubTrainer(self.log, dtype or self.dtype)
        return cast(Trainer, self.trainer)

    def start_engine(self, folder: Path | None, dtype: str | None, head: bool, instead: Engine | None) -> Engine:
        self.log.append(f"engine {folder.name if folder else 'own'} {dtype or self.dtype}{' head' if head else ''}")
        cold = folder is not None and (folder / "model.safetensors").read_bytes() == b"trainer's"
        return cast(Engine, StubEngine(self.log, 0.0 if cold else self.off, 0.0, self.opaque, dtype or self.dtype))

    def world(self, rollouts: Rollouts, *present: str) -> LiveBackend:
        engine, trainer = (
            CheckpointRef(self.folder / f"{side}-checkpoint", self.configs[side]) for side in ("engine", "trainer")
        )
        return LiveBackend(
            rollouts, self.folder,
            engine=(self.start_engine, engine) if "engine" in (present or ("engine",)) else None,
            trainer=(self.start_trainer, trainer) if "trainer" in (present or ("trainer",)) else None,
        )  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def compared(rollouts: Rollouts) -> np.ndarray:
    return np.concatenate([block.mask for block in rollouts.blocks()])


@pytest.mark.parametrize("change", [TrainerChange(), TrainerChange(temperature=0.7), TrainerChange(drop=1),
                                    TrainerChange(prepend=(9,)), TrainerChange(prepend=(9, 4), drop=1)], ids=str)  # fmt: skip
def test_logprobs_lie_where_their_tokens_are(change: TrainerChange, stage: Stage) -> None:
    rollouts = rolled()
    made = stage.world(rollouts).trainer(change)
    for number, tokens in enumerate(SEQUENCES):
        where = rollouts.sequence(number)
        for place in range(1 + change.drop, len(tokens)):
            before = [*change.prepend, *tokens[change.drop : place]]
            wanted = processed(row(before)[None], change.temperature or 1.0)[0, tokens[place]]
            assert made[where.start + place] == pytest.approx(wanted, abs=1e-9)
        if change.drop == 1 and not change.prepend:
            assert np.isnan(made[where][:2]).all()


def test_top_p_is_taken_of_whole_distributions(stage: Stage) -> None:
    rollouts = rolled()
    made = stage.world(rollouts).trainer(TrainerChange(temperature=0.5, top_p=0.9, top_k=5))
    tokens, where = SEQUENCES[0], rollouts.sequence(0)
    wanted = [processed(row(tokens[:place])[None], 0.5, 0.9, 5)[0, tokens[place]] for place in range(1, len(tokens))]
    assert made[where][1:] == pytest.approx(wanted, abs=1e-5)


def test_every_change_is_made_once_and_nothing_is_started_that_makes_no_difference(stage: Stage) -> None:
    world = stage.world(rolled())
    for _ in range(2):
        world.trainer(TrainerChange())
        world.trainer(TrainerChange(dtype="float32"))
        world.trainer(TrainerChange(head_fp32=True))
        world.engine(EngineChange())
        world.engine(EngineChange(dtype="float32"))
    assert world.weights() == ()
    world.engine(EngineChange(path="prefill", cold=True))
    assert [each for each in stage.log if each.startswith(("trainer", "engine"))] == [
        "trainer float32", "engine own float32", "engine trainer-with-engine-config float32",
    ]  # fmt: skip
    assert stage.log.count("score 3 at 1") == 3
    world.close()
    assert stage.log[-2:] == ["close engine", "close trainer"]


def test_paths_of_the_engine(stage: Stage) -> None:
    rollouts = rolled()
    world = stage.world(rollouts)
    mask = compared(rollouts)
    for change, asked in (
        (EngineChange(), ["follow 3"]),
        (EngineChange(alone=True), ["follow 1"] * 3),
        (EngineChange(path="prefill"), ["prefill 3"]),
        (EngineChange(fresh=True, alone=True), ["reset", "follow 1"] * 3),
    ):
        before = len(stage.log)
        made = world.engine(change)
        assert [each for each in stage.log[before:] if not each.startswith("engine")] == asked
        assert np.allclose(made[mask], rollouts.columns["engine_logprobs"][mask])


@pytest.mark.parametrize("told", ["processed", "unknown"])
def test_processed_logprobs_are_made_of_whole_distributions(told: str, stage: Stage) -> None:
    rollouts = rolled(0.6, told="processed")
    rollouts = rollouts.with_columns(Metadata(sampling=SamplingInfo(0.6), logprobs=cast(Any, told), vocabulary=IDS))
    world = stage.world(rollouts, "engine")
    mask = compared(rollouts)
    with pytest.raises(Skip, match="while it decodes the engine gives raw ones only"):
        world.engine(EngineChange())
    made = world.engine(EngineChange(path="prefill"))
    assert np.abs(made - rollouts.columns["engine_logprobs"])[mask].max() < 1e-5


def test_raw_logprobs_that_nobody_calls_so_are_known_by_their_values(stage: Stage) -> None:
    rollouts = rolled(0.6)
    rollouts = rollouts.with_columns(Metadata(sampling=SamplingInfo(0.6), vocabulary=IDS))
    mask = compared(rollouts)
    assert np.allclose(stage.world(rollouts).engine(EngineChange())[mask], rollouts.columns["engine_logprobs"][mask])


def causes(world: LiveBackend) -> list[str]:
    return [step.name for step in run_search(world, EXPERIMENTS, 1e-4).causes]


def test_the_ladder_on_live_sides(tmp_path: Path) -> None:
    def staged(name: str, off: float = 0.0) -> Stage:
        (tmp_path / name).mkdir()
        return Stage(tmp_path / name, off)

    assert causes(staged("healthy").world(rolled())) == []
    assert causes(staged("raw").world(rolled(0.7, divides=0.7))) == ["temperature"]
    wrong = staged("weights", off=0.2)
    found = run_search(wrong.world(rolled(off=0.2)), EXPERIMENTS, 1e-4)
    assert [step.name for step in found.causes] == ["weights"]
    cause = found.causes[0].trial
    assert cause is not None
    made = "model.layers.0.mlp.gate_up_proj.weight (model.layers.0.mlp.{gate_proj,up_proj}.weight)"
    assert cause.cause == f"1 tensor differs: {made}"
    lost = staged("lost")
    assert causes(lost.world(rolled(off=0.2))) == ["the engine again"]
    assert "manifest" not in lost.log
    assert causes(staged("other").world(replace(rolled(), metadata=rolled(divides=0.5).metadata))) == []


def test_trouble_of_a_process_is_an_experiment_that_cannot_be_made(stage: Stage) -> None:
    world = stage.world(rolled())
    world.trainer(TrainerChange())
    assert stage.trainer is not None
    stage.trainer.fails = RemoteError("transformers", "score", "ValueError", "too long", "")
    with pytest.raises(Skip, match="the trainer failed: transformers could not score: ValueError: too long"):
        world.trainer(TrainerChange(temperature=2.0))
    stage.trainer.fails = WorkerDied("transformers died")
    with pytest.raises(Skip, match="the trainer failed: transformers died"):
        world.trainer(TrainerChange(temperature=2.0))
    world.trainer(TrainerChange(temperature=2.0))
    assert stage.log.count("trainer float32") == 2


def test_a_side_that_never_starts_is_the_users_to_know_and_a_dtype_that_it_has_not_is_not(stage: Stage) -> None:
    def refuses(*_: object) -> Trainer:
        raise CkptcheckError("transformers is not installed")

    stage.start_trainer = refuses  # type: ignore[method-assign]
    with pytest.raises(CkptcheckError, match="not installed"):
        stage.world(rolled()).trainer(TrainerChange())
    start = stage.start_engine
    stage.start_engine = lambda *given: refuses() if given[1] else start(*given)  # type: ignore[method-assign,assignment]
    world = stage.world(rolled())
    world.engine(EngineChange())
    with pytest.raises(Skip, match="not installed"):
        world.engine(EngineChange(dtype="bfloat16"))


def test_a_side_that_cannot_be_started_is_tried_once(stage: Stage) -> None:
    tried = []

    def fails(*_: object) -> Any:
        tried.append(1)
        raise RemoteError("vllm", "start", "ValueError", "no such architecture", "")

    stage.start_engine = stage.start_trainer = fails  # type: ignore[method-assign]
    found = run_search(stage.world(rolled(off=0.2)), EXPERIMENTS, 1e-4)
    assert not found.causes
    assert len(tried) == 2
    skipped = {step.name: step.skipped for step in found.steps if step.skipped}
    assert skipped["the engine again"] == "the engine failed: vllm could not start: ValueError: no such architecture"
    assert skipped["caches"] == "vllm could not start: ValueError: no such architecture"


def test_a_switch_that_the_engine_does_not_take_is_no_experiment_however_often_it_is_asked(stage: Stage) -> None:
    stage.dtype = "bfloat16"
    start = stage.start_engine

    def ignoring(folder: Path | None, dtype: str | None, head: bool, instead: Engine | None) -> Engine:
        made = start(folder, dtype, head, instead)
        cast(Any, made).ignored_switches = {"head_fp32": "vLLM has no such switch"} if head else {}
        return made

    stage.start_engine = ignoring  # type: ignore[method-assign]
    world = stage.world(rolled())
    world.engine(EngineChange())
    for alone in (False, True):
        with pytest.raises(Skip, match="vLLM has no such switch"):
            world.engine(EngineChange(head_fp32=True, alone=alone))
    world.engine(EngineChange(path="prefill"))
    assert stage.log.count("engine own bfloat16 head") == 1


def test_sides_that_are_not_there_are_said(stage: Stage) -> None:
    alone = stage.world(rolled(), "trainer")
    for ask in (lambda: alone.engine(EngineChange()), alone.weights, alone.config):
        with pytest.raises(Skip, match="no engine is given"):
            ask()
    with pytest.raises(Skip, match="no trainer is given"):
        stage.world(rolled(), "engine").weights()
    with pytest.raises(Skip, match="no trainer is given"):
        stage.world(rolled(), "engine").trainer(TrainerChange(temperature=0.5))
    stage.opaque = "packed for oneDNN"
    with pytest.raises(Skip, match="cannot be read"):
        stage.world(rolled()).weights()
    stage.configs["engine"] = {"quantization_config": {}}
    with pytest.raises(Skip, match="is quantized"):
        stage.world(rolled()).weights()


def test_configs_are_compared_by_what_they_mean() -> None:
    old = {"rope_theta": 500000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}, "torch_dtype": "bfloat16"}
    new = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0}, "dtype": "float32"}
    assert describe_config_differences(old, new) == ()
    assert (
        describe_config_differences(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {"rope_theta": 10000}
        )
        == ()
    )
    assert describe_config_differences(
        {"hidden_size": 8, "rms_norm_eps": 1e-5}, {"hidden_size": 8, "rms_norm_eps": 1e-6}
    ) == ("rms_norm_eps 1e-05, and 1e-06 in the trainer",)
    assert describe_config_differences({"num_experts_per_tok": 2}, {"norm_topk_prob": True}) == (
        "norm_topk_prob nothing, and true in the trainer",
        "num_experts_per_tok 2, and nothing in the trainer",
    )


def test_a_checkpoint_of_two(tmp_path: Path) -> None:
    for side in ("one", "other"):
        (tmp_path / side).mkdir()
        for file in ("config.json", "model.safetensors"):
            (tmp_path / side / file).write_text(f"{side}'s")
    for _ in range(2):
        made = link_checkpoint(tmp_path / "one", tmp_path / "other", tmp_path / "made")
    assert (made / "model.safetensors").read_text() == "one's"
    assert (made / "config.json").read_text() == "other's"
    assert (tmp_path / "one" / "config.json").read_text() == "one's"
