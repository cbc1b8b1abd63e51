"""A watch that checks large syncs beside the job: what it says stays the same, and the job does not wait for it."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import (
    SyncError,
    SyncWarning,
    Watch,
    background_thread,
    module,
    schedule,
    tensor_digests,
    watch_state,
)
from ckptcheck.watch.background_thread import BackgroundThread
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

from tests.watch.test_engine_parts import Engine, names, weights  # noqa: E402

LOST = "1.self_attn.k_proj.weight"


def run_syncs(watch: Watch, engine: Engine, steps: range) -> None:
    """Sync new weights at each step, and overwrite what was sent right after: only a copy tells what it was."""
    for step in steps:
        sent = weights(engine, step)
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(iter(sent.items())))
        for tensor in sent.values():
            tensor.fill_(float("nan"))


@pytest.mark.parametrize("groups", [1, 5])
def test_it_records_what_a_watch_records_that_the_job_waits_for(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that are copied, and ones that are too large for that, in the order in which they came."""
    monkeypatch.setattr(tensor_digests, "COPIED", 16 * 16 * 4)
    monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 1)
    syncs = []
    for background in (False, True):
        engine = Engine()
        record = tmp_path / f"{background}.jsonl"
        watch = Watch(module(engine), background=background, record=record)
        if groups > 1:
            watch.schedule.groups = watch.schedule.parts = groups
        run_syncs(watch, engine, range(12))
        assert watch.wait(60)
        assert len(watch.last) == 12
        syncs.append(
            [(sync.group, list(sync.sent.items()), sync.held, sync.nbytes) for sync in open_history(record).syncs]
        )
    assert syncs[0] == syncs[1]
    assert any(sync.background for sync in open_history(record).syncs)


def test_a_small_model_is_checked_beside_the_job_after_its_first_syncs(tmp_path: Path) -> None:
    engine, record = Engine(), tmp_path / "syncs.jsonl"
    watch = Watch(module(engine), record=record, background=None)
    run_syncs(watch, engine, range(watch_state.FIRST + 2))
    assert watch.wait(60)
    in_background = [bool(sync.background) for sync in open_history(record).syncs]
    assert in_background == [False] * watch_state.FIRST + [True, True]


def test_what_is_lost_is_said_in_the_background_and_in_the_report() -> None:
    found: list[tuple[str, str]] = []
    engine = Engine()
    watch = Watch(
        module(engine),
        background=True,
        on=lambda finding: found.append((finding.code, threading.current_thread().name)),
    )
    run_syncs(watch, engine, range(3))
    engine.deaf = (LOST,)
    with watch(step=3) as sync:
        engine.load_weights(sync.sent(weights(engine, 3).items()))
    assert sync.report is not None
    assert [finding.code for finding in sync.report.findings] == ["HIS001"]
    assert found == [("HIS001", "ckptcheck-watch")]


def test_the_job_goes_on_while_a_sync_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the first sync waits for the job, which syncs again meanwhile."""
    goes_on, engine = threading.Event(), Engine()
    watch = Watch(module(engine), background=True)
    judge = watch.judge
    monkeypatch.setattr(watch, "judge", lambda sync: (goes_on.wait(60), judge(sync))[1])
    run_syncs(watch, engine, range(3))
    assert watch.last == []
    assert not watch.wait(0.0)
    goes_on.set()
    assert watch.wait(60)
    assert [sync.step for sync in watch.last] == [0, 1, 2]


def test_weights_of_a_sync_are_left_out_where_checks_do_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_thread, "MOST_WAITING", 1)
    goes_on, record = threading.Event(), tmp_path / "syncs.jsonl"
    watch = Watch(background=True, record=record)
    watch.thread.submit(lambda: goes_on.wait(60), 60)
    watch.thread.submit(lambda: goes_on.wait(60), 60)
    sync = watch(step=0)
    sync.before()
    list(sync.sent(weights(Engine(), 0).items()))
    watch.schedule.budget = 0.01  # which is also the time that it waits for the thread
    with pytest.warns(SyncWarning, match="syncs faster than its weights can be checked"):
        sync.after()
    goes_on.set()
    assert watch.wait(60)
    assert [(sync.step, sync.is_digested) for sync in open_history(record).syncs] == [(0, False)], "it did take place"


def test_a_tracker_that_does_not_answer_holds_up_no_record(tmp_path: Path) -> None:
    answers, record, numbers = threading.Event(), tmp_path / "syncs.jsonl", list[int]()

    def hang(_: Any, step: int) -> None:
        answers.wait(60)
        numbers.append(step)

    watch = Watch(background=True, record=record, metrics=hang)
    for step in range(8):
        with warnings.catch_warnings(), watch(step=step) as sync:
            warnings.simplefilter("ignore", SyncWarning)
            list(sync.sent([("w.weight", f"{step:032x}")]))
        assert watch.thread.wait(60)
    assert any("does not get those of some syncs" in each for each in watch.warned)
    assert [sync.step for sync in open_history(record).syncs] == list(range(8))
    assert numbers == []
    answers.set()
    assert watch.wait(60)
    # which ones had no room depends on when the thread took the first one
    assert numbers == sorted({*numbers} & {*range(8)})
    assert background_thread.MOST_WAITING <= len(numbers) < 8


def test_only_large_syncs_are_checked_beside_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    watch, raising = Watch(module(engine), background=None), Watch(module(engine), on="raise", background=True)
    run_syncs(watch, engine, range(1))
    assert not watch.is_in_background
    monkeypatch.setattr(watch_state, "SMALL", watch.nbytes - 1)
    assert watch.is_in_background
    run_syncs(raising, engine, range(3))
    engine.deaf = (LOST,)
    with pytest.raises(SyncError, match="HIS001"):
        run_syncs(raising, engine, range(3, 4))


def test_a_large_model_of_which_the_first_sync_stops_at_its_budget_is_looked_at_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sync saw a tensor whole, yet the same rows are looked at on both sides where the engine holds them as sent."""
    monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 1)
    engine = Engine()
    watch = Watch(module(engine), background=True)
    watch.schedule.groups = watch.schedule.parts = 4
    run_syncs(watch, engine, range(8))
    assert watch.wait(60)
    assert watch.stored_as_sent == set(names())
    assert all({key.partition("/")[2]: value for key, value in sync.held.items()} == sync.sent for sync in watch.last)


def test_a_warning_that_a_filter_raises_ends_nothing() -> None:
    watch = Watch(on=lambda finding: 1 / 0, background=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            with watch(step=step) as sync:
                list(sync.sent({"a.weight": "0" * 31 + "1"}.items()))
        assert watch.wait(60)
    assert len(watch.last) == 3


def test_a_forked_process_and_a_copy_begin_threads_of_their_own() -> None:
    watch = Watch(background=True)
    with watch(step=0) as sync:
        list(sync.sent({"a": "1"}.items()))
    assert watch.wait(60)
    child = os.fork()
    if not child:
        with watch(step=1) as sync:
            list(sync.sent({"a": "2"}.items()))
        os._exit(0 if watch.wait(60) and len(watch.last) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    copy = pickle.loads(pickle.dumps(watch))
    with copy(step=1):
        pass
    assert copy.wait(60)
    assert (len(watch.last), len(copy.last)) == (1, 2)


def test_an_idle_thread_ends_and_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_thread, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(background_thread, "POLL_SECONDS", 0.001)
    thread, ran = BackgroundThread(), list[int]()
    thread.submit(lambda: ran.append(1), 1)
    assert thread.wait(60)
    first: Any = thread._thread
    if first is not None:
        first.join(60)
    thread.submit(lambda: ran.append(2), 1)
    assert thread.wait(60)
    assert ran == [1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [None, slice(1, 3)])
def test_a_digest_of_a_copy_is_that_of_the_tensor(dtype: Any, rows: slice | None) -> None:
    torch.manual_seed(0)
    tensors = {"plain": torch.randn(4, 6), "across": torch.randn(6, 4).t(), "part": torch.randn(9, 6)[2:6]}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()} | (
        {} if rows else {"number": torch.tensor(3.0)}
    )
    found = []
    for defers in (False, True):
        digests = tensor_digests.SyncDigests(defers=defers)
        for name, tensor in tensors.items():
            digests.add(name, tensor, rows)
        digests.move_to_host()
        found.append(digests.compute())
    assert found[0] == found[1]


def test_rows_are_copied_as_planned_only_where_the_tensor_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is of bytes in memory: of another dtype, shape or layout they would be other elements."""
    monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 1)
    torch.manual_seed(0)
    watch = Watch(background=True)
    watch.schedule.groups, watch.schedule.parts = 1, 4
    plain = torch.randn(8, 6)
    watch.copy_plan.note("w", plain)
    watch.schedule.begin()
    plan = watch.copy_plan.list_copies(watch.schedule, watch.choose_sent_rows)["w"]
    planned, others = tensor_digests.SyncDigests(defers=True), tensor_digests.SyncDigests(defers=True)
    assert planned.copy_planned("w", plain, plan)
    others.add("w", plain, plan.rows)
    expected = others.compute()
    plain.zero_()
    assert planned.compute() == expected
    for other in (
        plain.double(),
        plain[:4],
        torch.zeros(6, 8).t(),
        torch.zeros(8, 6, device="meta"),
        "00",
        plain.numpy(),
    ):
        assert not planned.copy_planned("w", other, plan)
    emptied = torch.zeros(8, 6)
    emptied.untyped_storage().resize_(0)
    assert not planned.copy_planned("w", emptied, plan)


def test_most_tensors_are_copied_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = list[bool]()
    copy_planned = tensor_digests.SyncDigests.copy_planned
    monkeypatch.setattr(
        tensor_digests.SyncDigests,
        "copy_planned",
        lambda *arguments: (planned.append(copy_planned(*arguments)), planned[-1])[1],
    )
    engine = Engine()
    run_syncs(Watch(module(engine), background=True), engine, range(4))
    assert planned == [True] * 3 * len(names())


def test_what_is_asked_of_a_parameter_passes_through_no_function_of_its_class() -> None:
    """Those of vLLM have one that adds nothing and takes microseconds for each shape that is read."""
    asked = list[Any]()

    class Parameter(torch.nn.Parameter):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    model = torch.nn.Linear(4, 4, bias=False)
    model.weight = Parameter(torch.zeros(4, 4), requires_grad=False)
    watch = Watch(module(model), background=True)
    for step in range(3):
        with watch(step=step) as sync:
            list(sync.sent([("weight", torch.full((4, 4), step + 1.0))]))
            model.weight.data.fill_(step + 1.0)
            if step:
                asked.clear()
    assert asked == []
    assert watch.wait(60)
    assert [list(last.held.values()) == list(last.sent.values()) for last in watch.last] == [True] * 3


def test_copies_are_moved_from_a_device_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU: the copies say that they lie on one."""
    moved = list[int]()

    class OnDevice(torch.Tensor):  # type: ignore[misc]
        @property
        def device(self) -> Any:  # type: ignore[override]
            return torch.device("cuda", 0)

        @property
        def is_cpu(self) -> bool:  # type: ignore[override]
            return False

        def cpu(self) -> Any:  # type: ignore[override]
            moved.append(len(self))
            return self.as_subclass(torch.Tensor)

    tensors = {f"w{number}": torch.randn(number + 1, 5) for number in range(4)}
    digests, expected = tensor_digests.SyncDigests(defers=True), tensor_digests.digests(tensors.items())
    for name, tensor in tensors.items():
        digests.add(name, tensor.as_subclass(OnDevice))
    digests.move_to_host()
    assert moved == [sum(tensor.nbytes for tensor in tensors.values())]
    assert digests.compute() == expected
    monkeypatch.setattr(tensor_digests, "MOST_ON_DEVICE", 30)
    digests = tensor_digests.SyncDigests(defers=True)
    for name, tensor in tensors.items():
        digests.add(name, tensor.as_subclass(OnDevice))
    assert len(moved) == 4, "they do not pile up on the device"
    digests.move_to_host()
    assert digests.compute() == expected
