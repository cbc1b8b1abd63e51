"""One argument of a trainer of TRL puts the watch in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.framework_folders import load_framework_file
from ckptcheck.runs.history.history import open_history
from ckptcheck.runs.history.record import Record, SyncRecord
from ckptcheck.watch import SyncWarning, WatchCallback
from ckptcheck.watch.trl_callback import find_engine
from tests.watch.toy import NAMES, Engine, Trainer


class CallbackHandler:
    """As transformers': an event is a method of each callback."""

    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks = callbacks

    def call_event(self, event: str, **kwargs: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(None, None, None, **kwargs)


class Generation:
    """As TRL 1.16's VLLMGeneration, as far as a sync goes."""

    mode, llm = "colocate", None

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.trainer, self.engine = trainer, engine

    def _iter_named_params(self) -> Iterator[tuple[str, Any]]:
        yield from self.trainer.export()

    def sync_weights(self) -> None:
        self.engine.update(self._iter_named_params())


class GRPOTrainer:
    """As TRL's: its callbacks are called from its own training loop."""

    def __init__(self, generation: Any, callback: Any, *, is_main: bool = True) -> None:
        self.vllm_generation = generation
        self.callback_handler = CallbackHandler([callback])
        self.accelerator = SimpleNamespace(is_main_process=is_main)
        self.state = SimpleNamespace(global_step=0)

    def train(self, steps: int) -> None:
        self.callback_handler.call_event("on_train_begin", model=None)
        for step in range(steps):
            self.state.global_step = step
            self.vllm_generation.sync_weights()
            self.vllm_generation.trainer.step()
            self.callback_handler.call_event("on_step_end")
        self.callback_handler.call_event("on_train_end")


def test_one_argument_records_every_sync(tmp_path: Path) -> None:
    engine = Engine()
    trainer = GRPOTrainer(Generation(Trainer(), engine), WatchCallback(engine, record=tmp_path / "syncs.jsonl"))
    trainer.train(3)
    trainer.train(2)  # the watch is there already
    history = open_history(tmp_path / "syncs.jsonl")
    assert [(sync.step, len(sync.sent), len(sync.held)) for sync in history.syncs] == [
        (0, 6, 6), (1, 6, 6), (2, 6, 6), (0, 6, 6), (1, 6, 6),
    ]  # fmt: skip
    assert history.syncs[0].trainer == "trl"
    assert set(history.syncs[0].sent) == set(NAMES)


def test_the_record_is_whole_when_training_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last syncs are checked beside the job, here only when the job has made its last step."""
    last_step, record, append = threading.Event(), tmp_path / "syncs.jsonl", Record.append

    def append_late(self: Record, sync: SyncRecord) -> None:
        last_step.wait(60)
        append(self, sync)

    monkeypatch.setattr(Record, "append", append_late)
    engine = Engine()
    trainer = GRPOTrainer(Generation(Trainer(), engine), WatchCallback(engine, record=record, background=True))
    call_event = trainer.callback_handler.call_event

    def end_then_call(event: str, **keywords: Any) -> None:
        if event == "on_train_end":
            assert not record.exists()
            last_step.set()
        call_event(event, **keywords)

    monkeypatch.setattr(trainer.callback_handler, "call_event", end_then_call)
    trainer.train(3)
    assert [sync.step for sync in open_history(record).syncs] == [0, 1, 2]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    callback = WatchCallback(record=tmp_path / "syncs.jsonl")
    GRPOTrainer(Generation(Trainer(), Engine()), callback, is_main=False).train(2)
    assert not (tmp_path / "syncs.jsonl").exists()


def test_a_trainer_without_vllm_goes_on_and_is_told() -> None:
    callback = WatchCallback()
    trainer = GRPOTrainer(None, callback)
    with pytest.warns(SyncWarning, match="this trainer has no vllm_generation"):
        trainer.train(0)
    with pytest.warns(SyncWarning, match="this trainer has no vllm_generation"):
        callback.on_train_begin(None, None, None)


def test_a_watch_that_cannot_be_made_never_ends_the_job() -> None:
    trainer = GRPOTrainer(Generation(Trainer(), Engine()), WatchCallback(kep=3))
    with pytest.warns(SyncWarning, match="cannot watch this trainer: TypeError"):
        trainer.train(1)


def test_the_engine_is_found() -> None:
    assert find_engine(SimpleNamespace(mode="colocate", llm=None)) is None
    found = find_engine(SimpleNamespace(mode="server", vllm_client=SimpleNamespace(base_url="http://localhost:8000")))
    assert found is not None
    assert found.name == "http://localhost:8000"
    llm: Any = SimpleNamespace(named_parameters=dict)
    for name in ("model", "model_runner", "driver_worker", "model_executor", "llm_engine"):
        llm = SimpleNamespace(**{name: llm})
    colocated = find_engine(SimpleNamespace(mode="colocate", llm=llm))
    assert colocated is not None
    assert colocated.name == "vllm"


def test_it_is_no_callback_for_what_is_no_event() -> None:
    with pytest.raises(AttributeError):
        _ = WatchCallback().state  # type: ignore[attr-defined]


def make_trl(**settings: Any) -> Any:
    """Return what a trainer of TRL with a vLLM in its process looks like."""
    generation = SimpleNamespace(
        **{"mode": "colocate", "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
        | {"generation_kwargs": {}} | settings.pop("generation", {}),
    )  # fmt: skip
    cache = settings.pop("cached", {})
    config = SimpleNamespace(dtype="torch.float32", logprobs_mode=settings.pop("logprobs_mode", "processed_logprobs"))
    pool = SimpleNamespace(cached_block_hash_to_block=SimpleNamespace(_cache=cache))
    scheduler = SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=pool))
    core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
    generation.llm = SimpleNamespace(
        llm_engine=SimpleNamespace(engine_core=core, vllm_config=SimpleNamespace(model_config=config))
    )
    return SimpleNamespace(**{"vllm_generation": generation, "temperature": 1.0} | settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"temperature": 0.7, "generation": {"temperature": 0.7}}, []),
        ({"cached": {1: "block"}}, ["the engine kept its prefix cache over the sync"]),
        ({"generation": {"temperature": 0.7}}, ["the engine draws at temperature 0.7, and the trainer computes at 1"]),
        (
            {"generation": {"generation_kwargs": {"temperature": 0.5}}},
            ["the engine draws at temperature 0.5, and the trainer computes at 1"],
        ),
        (
            {"temperature": 0.7, "generation": {"temperature": 0.7}, "logprobs_mode": "raw_logprobs"},
            ["the engine gives raw logprobs, and the trainer divides by the temperature 0.7"],
        ),
        ({"logprobs_mode": "raw_logprobs"}, []),
        (
            {"generation": {"top_p": 0.9}},
            ["the engine's logprobs are those after top_p = 0.9, and the trainer's are not"],
        ),
        ({"generation": {"top_k": -1}}, []),
    ],
)
def test_what_lets_logprobs_differ_is_noted(settings: dict[str, Any], expected: list[str]) -> None:
    assert load_framework_file("trl", "watch").find_suspects(make_trl(**settings)) == expected


@pytest.mark.parametrize(
    ("engine", "trainer", "flags", "expected"),
    [
        ("torch.float32", "torch.float32", {}, "float32"),
        ("torch.bfloat16", "torch.float32", {}, "bfloat16"),
        ("torch.float32", "torch.float16", {}, "float16"),
        ("torch.float32", "torch.float32", {"bf16": True}, "bfloat16"),
    ],
)
def test_the_narrower_dtype_counts(engine: str, trainer: str, flags: dict[str, bool], expected: str) -> None:
    owner = make_trl(model=SimpleNamespace(parameters=lambda: iter([SimpleNamespace(dtype=trainer)])))
    owner.args = SimpleNamespace(**flags)
    owner.vllm_generation.llm.llm_engine.vllm_config.model_config.dtype = engine
    assert load_framework_file("trl", "watch").find_dtype(owner) == expected


def test_a_trainer_that_cannot_be_probed_is_watched_without(tmp_path: Path) -> None:
    engine = Engine()
    generation = Generation(Trainer(), engine)
    generation.enable_sleep_mode = True  # type: ignore[attr-defined]
    trainer = GRPOTrainer(generation, WatchCallback(engine, record=tmp_path / "syncs.jsonl", probe=2))
    trainer.accelerator.unwrap_model = lambda model: model
    trainer.model = None  # type: ignore[attr-defined]
    with pytest.warns(SyncWarning, match="no probe: with vllm_enable_sleep_mode the engine sleeps where a sync ends"):
        trainer.train(2)
    assert len(open_history(tmp_path / "syncs.jsonl").syncs) == 2


def test_what_trl_logs_reaches_the_next_sync(tmp_path: Path) -> None:
    """TRL has counted a step when it logs it: the tokens are those of the sync before."""
    engine = Engine()
    trainer = GRPOTrainer(Generation(Trainer(), engine), WatchCallback(engine, record=tmp_path / "syncs.jsonl"))
    trainer.train(0)
    handler = trainer.callback_handler
    for step in range(3):
        trainer.state.global_step = step
        trainer.vllm_generation.sync_weights()
        trainer.vllm_generation.trainer.step()
        state = SimpleNamespace(global_step=step + 1)
        for callback in handler.callbacks:
            callback.on_log(None, state, None, logs={"loss": 1.0, "sampling/sampling_logp_difference/mean": 1e-7})
    gaps = [sync.gap for sync in open_history(tmp_path / "syncs.jsonl").syncs]
    assert [gap and gap.step for gap in gaps] == [None, 0, 1]
