"""A watch around syncs of a toy: what it records and says, and that it never ends the training by itself."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.runs.history.history import open_history
from ckptcheck.runs.history.record import run_id
from ckptcheck.watch import SyncError, SyncWarning, Watch, digests, module, servers
from tests.conftest import needs
from tests.paths import ROOT
from tests.watch.toy import NAMES, Engine, Trainer


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


def test_a_base_that_moves_under_its_adapter_is_raised_and_one_that_is_sent_once_is_not() -> None:
    trainer, watch = Trainer(), Watch(on="raise")
    module = NAMES[0].removesuffix(".weight")
    for step in range(8):
        adapter = {f"{module}.lora_A.weight": np.full((2, 4), step), f"{module}.lora_B.weight": np.full((4, 2), step)}
        with watch(step=step) as sync:
            for _ in sync.sent(iter([*(trainer.weights if step in (0, 5) else {}).items(), *adapter.items()])):
                pass
    trainer.step()
    with (
        pytest.raises(SyncError, match=f"HIS021 step 8: 1 weight of the base moved .*: {NAMES[0]}"),
        watch(step=8) as sync,
    ):
        sync.sent({**trainer.weights, **adapter})


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
        found = {(finding.code, finding.severity) for finding in told}
        assert found == ({("HIS002", "warning"), ("HIS002", "error")} if frozen else set())
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    synced(trainer, engine, watch)
    trainer.step(frozen=tuple(NAMES))
    with pytest.warns(SyncWarning, match="HIS002 step 1: the trainer sent all 6 tensors as at step 0"):
        synced(trainer, engine, watch)


def test_a_finding_is_said_once_also_when_the_first_syncs_are_dropped() -> None:
    """The rules see the last syncs only. With the one that explains a finding, another finding may go that it explained."""
    trainer, engine = Trainer(), Engine()
    told: list[Finding] = []
    watch = Watch(engine, on=told.append)
    for step in range(14):
        engine.deaf = (NAMES[2],) if step == 2 else ()
        synced(trainer, engine, watch)
        trainer.step()
    assert [(finding.code, finding.message.partition(":")[0]) for finding in told] == [("HIS001", "step 2")]


def test_a_finding_whose_message_counts_on_is_said_once() -> None:
    found: list[str] = []
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on=lambda finding: found.append(f"{finding.code} {finding.key}"))
    for step in range(8):
        with watch(step=step) as sync:
            engine.update(sync.sent(trainer.export()))
        trainer.step(frozen=(NAMES[0],))
    assert found == [f"HIS004 {NAMES[0]}"]


def test_a_line_of_the_log_names_the_tensor() -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    for _ in range(2):
        synced(trainer, engine, watch)
        trainer.step()
    update = engine.update
    engine.update = lambda weights: update((name, values * (name != NAMES[1])) for name, values in weights)  # type: ignore[method-assign]
    with pytest.warns(SyncWarning, match=rf"HIS008 step 2: .* in 1 tensor \({NAMES[1]}\)$"):
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


@pytest.mark.parametrize("every", [2, 5])
def test_a_lost_tensor_is_found_though_most_syncs_are_not_looked_at(every: int) -> None:
    """Also in an engine whose digests compare with nothing: there only what did not change tells."""
    for alike in (True, False):
        trainer, engine, told = Trainer(), Engine(), list[Finding]()
        engine.alike = alike  # type: ignore[misc]
        watch = Watch(engine, every=every, on=told.append)
        for step in range(41):
            engine.deaf = (NAMES[2],) if step > 1 else ()
            synced(trainer, engine, watch)
            trainer.step()
        first = min(int(finding.message.split()[1].rstrip(":")) for finding in told if finding.code == "HIS001")
        assert first <= 2 + 2 * every
        assert {finding.code for finding in told} <= {"HIS001", "HIS008"}


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


def test_tensors_of_every_form_are_digested_as_their_bytes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled kernel, which reads memory by its address, and without it."""
    needs("torch")
    import torch

    from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import digest as digest_slowly
    from ckptcheck.values import shard_digest
    from ckptcheck.watch.tensor_digests import digest_tensor

    whole = torch.arange(6000, dtype=torch.float32).reshape(60, 100)
    forms = [
        whole,
        whole.t(),
        whole[7:, 3:],
        whole[5],
        whole[0, 0],
        whole[:0],
        whole.bfloat16(),
        torch.nn.Parameter(whole),
    ]
    expected = [digest_slowly(each) for each in forms]
    assert len(set(expected)) == len(forms) - 1
    assert [digest_tensor(each) for each in forms] == expected
    monkeypatch.setattr(shard_digest, "_load_kernels", lambda: None)
    assert [digest_tensor(each) for each in forms] == expected

    class Wrapper(torch.Tensor):
        """Has no memory of its own."""

        @staticmethod
        def __new__(cls: type) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (4,))

        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            return cls()

    monkeypatch.undo()
    with pytest.raises(RuntimeError):
        digest_tensor(Wrapper())


def test_the_example_of_the_documentation_says_what_it_is_shown_to_say(tmp_path: Path) -> None:
    needs("torch")
    from tests.watch import forgetful

    with pytest.warns(SyncWarning) as said:
        forgetful.main(str(tmp_path / "syncs.jsonl"))
    shown = (ROOT / "docs/watch.md").read_text(encoding="utf-8")
    assert [f"SyncWarning: {each.message}" in shown for each in said] == [True]
    report = run_rules(open_history(tmp_path / "syncs.jsonl"), rule_loader.load_rules())
    rows = [line.split()[:8] for line in shown.splitlines() if re.match(r" +\d+ +\d+ +–", line)]
    section, changed = report.sections
    assert all(f"  {line}\n" in shown for line in changed.brief)
    assert rows == [["–" if cell is None else f"{cell:.4g}" for cell in row[:8]] for row in section.rows]


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_job_that_goes_on_is_held_against_what_it_sent_before(tmp_path: Path, is_sound: bool) -> None:
    record, found = tmp_path / "syncs.jsonl", list[str]()

    def run(trainer: Trainer, steps: range) -> None:
        engine = Engine()
        watch = Watch(engine, record=record, on=lambda finding: found.append(f"{finding.code} {finding.message}"))
        for step in steps:
            with watch(step=step) as sync:
                engine.update(sync.sent(trainer.export()))
            trainer.step()

    run(Trainer(), range(6))
    record.write_text(record.read_text("utf-8").replace(f'"run":"{run_id()}"', '"run":"0123456789ab"'), "utf-8")
    trainer = Trainer()
    for _ in range(4 if is_sound else 0):
        trainer.step()
    run(trainer, range(4, 8))
    assert [line[:60] for line in found] == (
        [] if is_sound else ["HIS006 step 4: the trainer was started again and did not go "]
    )
    assert is_sound or "; those of step 0" in found[0]


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


def test_weights_stay_as_they_are_given() -> None:
    pairs = list(Trainer().export())
    told = {name: digest(values) for name, values in pairs}

    async def received() -> AsyncIterator[tuple[str, Any]]:
        for each in pairs:
            yield each

    async def taken(weights: Any) -> list[Any]:
        return [each async for each in weights]

    for given, take in (
        (pairs, lambda weights: weights),
        (tuple(pairs), lambda weights: weights),
        (dict(pairs), lambda weights: weights),
        (iter(pairs), list),
        (dict(pairs).items(), list),
        (received(), lambda weights: asyncio.run(taken(weights))),
    ):
        watch = Watch()
        with watch(step=0) as sync:
            out = take(sync.sent(given))
        assert out == (given if isinstance(given, dict | tuple) else pairs)
        assert watch.last[0].sent == told


def test_what_is_no_series_of_weights_is_passed_on_and_said_once() -> None:
    class Deltas:
        """As verl's delta checkpoint engine yields them: neither a pair nor two of anything."""

    def passed(given: Any) -> Any:
        with watch(step=0) as sync:
            out = sync.sent(given)
            return out if out is given else list(out)

    watch, deltas, other = Watch(), [Deltas(), Deltas()], Deltas()
    with pytest.warns(SyncWarning, match="does not see what is sent: it comes as Deltas"):
        assert passed(iter(deltas)) == deltas
    with pytest.warns(SyncWarning, match="does not see what is sent: Deltas is no series"):
        assert passed(other) is other
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(passed([("w", np.zeros(2)), *deltas])) == 3
    assert [each.sent for each in watch.last] == [{}, {}, {}]


def test_weights_that_are_taken_after_the_sync_are_passed_on_and_not_recorded() -> None:
    watch = Watch()
    with pytest.warns(SyncWarning, match="before the engine read the weights"), watch(step=0) as sync:
        kept = sync.sent(Trainer().export())
    assert [name for name, _ in kept] == NAMES
    assert watch.last[0].sent == {}
    with watch(step=1) as sync:
        begun = iter(sync.sent(Trainer().export()))
        next(begun)
    assert [name for name, _ in begun] == NAMES[1:]
    assert list(watch.last[1].sent) == NAMES[:1], "what is recorded does not change any more"


def test_what_the_trainer_expects_stands_in_for_what_was_not_seen() -> None:
    watch = Watch(expected=Trainer().export)
    with pytest.warns(SyncWarning, match="does not see"), watch(step=0) as sync:
        sync.unseen("it goes another way")
    assert set(watch.last[0].sent) == set(NAMES)


def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1\n" * 300, encoding="utf-8")
    with pytest.warns(SyncWarning, match="train.log is not a record of syncs, and is left as it is"):
        synced(Trainer(), Engine(), Watch(record=path))
    assert path.read_text(encoding="utf-8") == "step 1\n" * 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "syncs.jsonl"}, "takes an engine first, and 'syncs.jsonl' is not one"),
        ({"engine": Trainer()}, "takes an engine first, and a Trainer is not one"),
        ({"on": "rais"}, "on='rais' is neither"),
        ({"every": "5"}, "every='5' is not a whole number"),
        ({"every": 2.5}, "every=2.5 is not a whole number"),
        ({"share": "0.1"}, "share='0.1' is not a number"),
        ({"budget": -1}, "budget=-1 is not a number of at least 0"),
        ({"budget": float("nan")}, "budget=nan is not a number"),
        ({"record": "s3://bucket/syncs.jsonl"}, "is an address"),
        ({"record": "/"}, "is a folder"),
        ({"record": ""}, "is a folder"),
    ],
)
def test_what_no_sync_could_work_with_is_refused_before_the_first_one(arguments: Any, message: str) -> None:
    """At a sync, hours later, it would end the job, or find nothing without a word."""
    with pytest.raises(CkptcheckError, match=re.escape(message)):
        Watch(**arguments)


def test_an_engine_that_is_none_is_refused() -> None:
    with pytest.raises(CkptcheckError, match="takes the engine's torch module, and NoneType is none"):
        module(None)
    with pytest.raises(CkptcheckError, match="address of one server at least"):
        servers()


def test_a_step_and_a_loss_may_be_tensors_and_a_version_a_number(tmp_path: Path) -> None:
    """A training loop has its loss as a tensor: the record has to be written all the same."""
    watch = Watch(record=tmp_path / "syncs.jsonl")
    for number in range(2):
        with watch(step=np.int64(number), loss=np.array(0.5), version=number) as sync:  # type: ignore[arg-type]
            list(sync.sent([("w", f"{number:032x}")]))
    syncs = open_history(tmp_path / "syncs.jsonl").syncs
    assert [(sync.step, sync.loss, sync.version) for sync in syncs] == [(0, 0.5, "0"), (1, 0.5, "1")]
    with (
        pytest.warns(SyncWarning, match="loss is no number but list, and is not recorded"),
        watch(step=2, loss=[1.0, 2.0]),
    ):  # type: ignore[arg-type]
        pass
    assert watch.last[-1].loss is None


def test_a_record_may_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Watch(record="~/syncs.jsonl")(step=0) as sync:
        list(sync.sent([("w", "0" * 31 + "1")]))
    assert (tmp_path / "syncs.jsonl").is_file()
