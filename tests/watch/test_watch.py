"""A watch around syncs of a toy: what it records and says, and that it never ends the training by itself."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import needs

from ckptcheck import pack
from ckptcheck.engines.digest import digest
from ckptcheck.history.history import open_history
from ckptcheck.rule import Finding
from ckptcheck.run import run
from ckptcheck.watch import SyncError, SyncWarning, Watch, adapters, digests, module

NAMES = [f"model.layers.{layer}.mlp.{part}.weight" for layer in range(3) for part in ("up_proj", "down_proj")]


class Trainer:
    """Holds weights; every step changes all of them but those in `frozen`."""

    def __init__(self) -> None:
        self.weights = {name: np.full((4, 4), number, np.float32) for number, name in enumerate(NAMES)}
        self.step_number = 0

    def step(self, frozen: tuple[str, ...] = ()) -> None:
        self.step_number += 1
        for name in self.weights.keys() - set(frozen):
            self.weights[name] = self.weights[name] + 0.5

    def export(self) -> Iterator[tuple[str, Any]]:
        yield from self.weights.items()


class Engine:
    """Takes weights, all but those in `deaf`. It tells digests and a version, or raises what is in `broken`."""

    name, alike = "toy", True

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.deaf: tuple[str, ...] = ()
        self.number = 0
        self.broken: Exception | None = None

    def update(self, weights: Any) -> None:
        for name, values in weights:
            if name not in self.deaf:
                self.weights[name] = values.copy()
        self.number += 1

    def held(self) -> Mapping[str, str]:
        if self.broken:
            raise self.broken
        return {f"0/{name}": digest(values) for name, values in self.weights.items()}

    def version(self) -> str | None:
        return str(self.number)


def synced(trainer: Trainer, engine: Engine, watch: Watch) -> Any:
    with watch(step=trainer.step_number, loss=2 - trainer.step_number / 10) as sync:
        engine.update(sync.sent(trainer.export()))
    return sync


def test_sound_syncs_are_recorded_and_nothing_is_said(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on="raise")
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert synced(trainer, engine, watch).report.findings == ()
        trainer.step()
    found = open_history(tmp_path / "syncs.jsonl")
    assert [(sync.step, sync.before, sync.version) for sync in found.syncs] == [
        (0, "0", "1"), (1, "1", "2"), (2, "2", "3"), (3, "3", "4"),
    ]  # fmt: skip
    last = found.syncs[-1]
    assert last.sent == {name: digest(values) for name, values in engine.weights.items()}
    assert last.held == {f"0/{name}": value for name, value in last.sent.items()}
    assert (last.nbytes, last.ok, last.alike) == (6 * 64, True, True)


def test_what_the_engine_did_not_take_is_raised_at_once(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on="raise")
    synced(trainer, engine, watch)
    trainer.step()
    engine.deaf = (NAMES[2],)
    with pytest.raises(
        SyncError, match=rf"HIS001 step 1: 1 tensor of the engine did not change .*: {NAMES[2]}"
    ) as caught:
        synced(trainer, engine, watch)
    assert {finding.code for finding in caught.value.report.findings} == {"HIS001"}
    engine.deaf = ()
    trainer.step()
    assert synced(trainer, engine, watch).report.findings == (), "what was said before is not said again"


def test_findings_are_warnings_by_default_or_go_to_a_function() -> None:
    for frozen in (True, False):
        trainer, engine = Trainer(), Engine()
        told: list[Finding] = []
        watch = Watch(engine, on=told.append)
        for _ in range(4):
            synced(trainer, engine, watch)
            trainer.step(frozen=tuple(NAMES) if frozen else ())
        assert {finding.code for finding in told} == ({"HIS002", "HIS003"} if frozen else set())
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    synced(trainer, engine, watch)
    trainer.step(frozen=tuple(NAMES))
    with pytest.warns(SyncWarning, match="HIS002 step 1: all 6 tensors were sent as they were at step 0"):
        synced(trainer, engine, watch)


def test_a_failed_sync_is_recorded_and_its_own_error_goes_on(tmp_path: Path) -> None:
    watch = Watch(record=tmp_path / "syncs.jsonl", on="raise")
    with (
        pytest.warns(SyncWarning, match="HIS009 step 3: the update failed: OSError: the link is down"),
        pytest.raises(OSError, match="the link is down"),
        watch(step=3),
    ):
        raise OSError("the link is down")
    assert open_history(tmp_path / "syncs.jsonl").syncs[0].ok is False


def test_trouble_of_the_watch_does_not_reach_the_training(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    engine.broken = RuntimeError("cannot be read now")
    watch = Watch(engine, record=tmp_path / "nowhere" / "syncs.jsonl", on="raise")
    with pytest.warns(SyncWarning) as said:
        synced(trainer, engine, watch)
    messages = [str(each.message) for each in said]
    assert any(
        "could not ask the engine for its weights: RuntimeError: cannot be read now" in each for each in messages
    )
    assert any("could not write the record: cannot write the record" in each for each in messages)
    with pytest.warns(SyncWarning, match="could not digest w"), Watch()(step=1) as sync:
        assert list(sync.sent([("w", object())]))


def test_weights_that_do_not_pass_through_are_asked_for_or_told_as_digests() -> None:
    trainer = Trainer()
    watch = Watch(expected=trainer.export)
    with watch(step=0):
        pass
    assert watch.last[0].sent == {name: digest(values) for name, values in trainer.weights.items()}
    told = digests(trainer.export())
    assert told == watch.last[0].sent
    watch = Watch()
    with watch(step=0) as sync:
        assert dict(sync.sent(told.items())) == told
    assert watch.last[0].sent == told


def test_every_third_sync_is_looked_at_and_other_ranks_do_nothing(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", every=3)
    for _ in range(7):
        synced(trainer, engine, watch)
        trainer.step()
    syncs = open_history(tmp_path / "syncs.jsonl").syncs
    assert [bool(sync.sent and sync.held) for sync in syncs] == [True, False, False, True, False, False, True]
    assert [sync.version for sync in syncs] == [str(number) for number in range(1, 8)]
    engine.broken = AssertionError("is not asked")
    idle = Watch(engine, record=tmp_path / "other.jsonl", enabled=False)
    assert synced(trainer, engine, idle).report is None
    assert not (tmp_path / "other.jsonl").exists()


def test_torch_tensors_where_they_lie() -> None:
    needs("torch")
    import torch

    model = torch.nn.Linear(4, 3)
    watch = Watch(module(model), on="raise")
    for step in range(2):
        with torch.no_grad():
            model.weight += 1
            model.bias += 1
        with watch(step=step) as sync:
            list(sync.sent((f"{name}", parameter.detach()) for name, parameter in model.named_parameters()))
    assert watch.last[-1].held == {f"0/{name}": value for name, value in watch.last[-1].sent.items()}
    assert watch.last[-1].sent["weight"] == digest(model.weight.detach().numpy())

    class Sharded(torch.Tensor):
        def full_tensor(self) -> torch.Tensor:
            raise AssertionError("gathering is the caller's: other ranks would have to join")

    watch = Watch()
    with pytest.warns(SyncWarning, match="it is sharded over ranks"), watch(step=2) as sync:
        list(sync.sent([("bias", torch.zeros(2)), ("weight", torch.zeros(2).as_subclass(Sharded))]))
    assert watch.last[-1].sent == {}


def test_the_example_of_the_documentation_says_what_it_is_shown_to_say(tmp_path: Path) -> None:
    needs("torch")
    import forgetful

    with pytest.warns(SyncWarning) as said:
        forgetful.main(str(tmp_path / "syncs.jsonl"))
    shown = (Path(__file__).parents[2] / "ckptcheck/watch/README.md").read_text(encoding="utf-8")
    assert [f"SyncWarning: {each.message}" in shown for each in said] == [True, True]
    report = run(open_history(tmp_path / "syncs.jsonl"), pack.load())
    assert f"✗ 2 errors · {len(report.passed)} rules passed" in shown
    rows = [line.split()[:8] for line in shown.splitlines() if re.match(r" +\d+ +\d+ +–", line)]
    (section,) = report.sections
    assert rows == [["–" if cell is None else f"{cell:.4g}" for cell in row[:8]] for row in section.rows]


def test_after_ctrl_c_nobody_is_asked(tmp_path: Path) -> None:
    def unasked() -> Any:
        raise AssertionError("is not asked")

    engine = Engine()
    watch = Watch(engine, expected=unasked, record=tmp_path / "syncs.jsonl")
    sync = watch(step=0)
    sync.before()
    engine.version = engine.held = unasked  # type: ignore[method-assign]
    with pytest.warns(SyncWarning, match="HIS009") as said:
        sync.after(KeyboardInterrupt())
    assert len(said) == 1
    (kept,) = open_history(tmp_path / "syncs.jsonl").syncs
    assert (kept.before, kept.ok, kept.message) == ("0", False, "KeyboardInterrupt: ")


class SlimeUpdater:
    """As slime 04b6c8d has it: UpdateWeightFromTensor, with HfWeightIteratorDirect's method."""

    class Iterator:
        def __init__(self, trainer: Trainer) -> None:
            self.trainer = trainer

        def get_hf_weight_chunks(
            self, megatron_local_weights: Any, param_info_buckets: Any = None
        ) -> Iterator[list[Any]]:
            pairs = list(self.trainer.export())
            yield pairs[:4]
            yield pairs[4:]

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.engine, self.weight_version = engine, 0
        self._hf_weight_iterator = self.Iterator(trainer)

    def update_weights(self) -> None:
        self.weight_version += 1
        for chunk in self._hf_weight_iterator.get_hf_weight_chunks({}, param_info_buckets=()):
            self.engine.update(chunk)
            chunk.clear()  # slime does, as soon as a bucket was taken


def test_slime() -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    updater = adapters.slime(SlimeUpdater(trainer, engine), watch)
    for _ in range(3):
        updater.update_weights()
        trainer.step()
    assert [sync.step for sync in watch.last] == [1, 2, 3]
    assert all(set(sync.sent) == set(NAMES) for sync in watch.last)
    engine.deaf = (NAMES[0],)
    with pytest.raises(SyncError, match="HIS001 step 4"):
        updater.update_weights()
    assert updater.weight_version == 4


def test_slime_that_broadcasts_is_seen_from_the_engine_only() -> None:
    class Distributed:
        weight_version = 0

        def update_weights(self) -> None:
            self.weight_version += 1
            engine.update(trainer.export())

    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    updater = adapters.slime(Distributed(), watch)
    updater.update_weights()
    with pytest.warns(SyncWarning, match="HIS002 step 2: all 6 tensors of the engine are as they were at step 1"):
        updater.update_weights()


class VerlRollout:
    """As verl 11eb3d0 has it: BaseRollout.update_weights."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def update_weights(self, weights: Any, **kwargs: Any) -> None:
        self.engine.update(weights)
        self.kwargs = kwargs


class VerlCheckpointEngine:
    """As verl 11eb3d0 has it: CheckpointEngine.send_weights."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def send_weights(self, weights: Any) -> None:
        self.engine.update(weights)


@pytest.mark.parametrize("made", [VerlRollout, VerlCheckpointEngine])
def test_verl(made: Any) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    side = adapters.verl(made(engine), watch)
    send = getattr(side, "update_weights", None) or side.send_weights
    more = {"global_steps": 7} if made is VerlRollout else {}
    asyncio.run(send(trainer.export(), **more))
    trainer.step()
    engine.deaf = (NAMES[3],)
    with pytest.raises(SyncError, match="HIS001"):
        asyncio.run(send(trainer.export(), **{key: value + 1 for key, value in more.items()}))
    assert [sync.step for sync in watch.last] == ([7, 8] if more else [None, None])
    assert set(watch.last[0].sent) == set(NAMES)


def test_nemo_rl() -> None:
    def refit_policy_generation(policy: Any, policy_generation: Any, colocated_inference: bool) -> None:
        """As NeMo-RL 00ab4ef has it, in grpo.py."""
        if policy is None:
            raise RuntimeError("Updating weights for the generation policy failed during refit")
        policy_generation.update(policy.export())

    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    refit = adapters.nemo_rl(refit_policy_generation, watch, step=lambda: trainer.step_number)
    for _ in range(2):
        refit(trainer, engine, colocated_inference=True)
        trainer.step()
    with pytest.warns(SyncWarning, match="HIS009"), pytest.raises(RuntimeError, match="failed during refit"):
        refit(None, engine, True)
    assert [(sync.step, sync.ok, len(sync.held)) for sync in watch.last] == [(0, True, 6), (1, True, 6), (2, False, 6)]
