"""A watch that checks large syncs beside the job: what it says stays the same, and the job does not wait for it."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import sum_shard
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncError, SyncWarning, Watch, background_thread, module, tensor_digests, watch_state
from ckptcheck.watch.background_thread import BackgroundThread
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

from tests.watch.test_engine_parts import Engine, weights  # noqa: E402

LOST = "1.self_attn.k_proj.weight"


def run_syncs(watch: Watch, engine: Engine, steps: range) -> None:
    """Sync new weights at each step, and overwrite what was sent right after."""
    for step in steps:
        sent = weights(engine, step)
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(iter(sent.items())))
        for tensor in sent.values():
            tensor.fill_(float("nan"))


@pytest.mark.parametrize("groups", [1, 4])
def test_it_records_what_a_watch_records_that_the_job_waits_for(groups: int, tmp_path: Path) -> None:
    syncs = []
    for background in (False, True):
        engine = Engine()
        record = tmp_path / f"{background}.jsonl"
        watch = Watch(module(engine), background=background, record=record)
        if groups > 1:
            watch.schedule.groups, watch.schedule.choose_groups = groups, lambda: groups  # type: ignore[method-assign]
        run_syncs(watch, engine, range(12))
        assert watch.wait(60)
        assert len(watch.last) == 12
        syncs.append(
            [(sync.group, list(sync.sent.items()), sync.held, sync.nbytes) for sync in open_history(record).syncs]
        )
    assert syncs[0] == syncs[1]


def test_a_small_model_is_checked_beside_the_job_after_its_first_syncs() -> None:
    engine, threads = Engine(), list[str]()
    watch = Watch(
        module(engine), background=None, metrics=lambda values, step: threads.append(threading.current_thread().name)
    )
    run_syncs(watch, engine, range(watch_state.FIRST + 2))
    assert watch.wait(60)
    assert threads == ["MainThread"] * watch_state.FIRST + ["ckptcheck-watch"] * 2


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
    assert any("those of some syncs are dropped" in each for each in watch.warned)
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


def test_digests_of_a_device_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU: the tensors say that they lie on one."""

    class OnDevice(torch.Tensor):  # type: ignore[misc]
        @property
        def device(self) -> Any:  # type: ignore[override]
            return torch.device("cuda", 0)

    tensors = {f"w{number}": torch.randn(number + 1, 5) for number in range(4)}
    monkeypatch.setattr(
        tensor_digests.shard_digest, "sum_shard", lambda tensor: sum_shard(tensor.as_subclass(torch.Tensor))
    )
    digests = tensor_digests.SyncDigests()
    for name, tensor in tensors.items():
        digests.add(name, tensor.as_subclass(OnDevice))
    assert digests.fetch() == tensor_digests.digests(tensors.items())
    assert digests.nbytes == 5 * 4 * (1 + 2 + 3 + 4)
