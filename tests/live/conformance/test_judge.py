"""What counts as which answer, from the reply and what the receiver holds."""

from __future__ import annotations

import pytest

from ckptcheck.live.conformance.faults import (
    TITLES,
    Fault,
    FaultKind,
    Parcel,
    ReceiverState,
    Reply,
    plan_faults,
    send_all,
)
from ckptcheck.live.conformance.trace import KnownStates, judge

KNOWN = KnownStates({"a": "1", "b": "2", "same": "0"}, {"a": "8", "b": "9", "same": "0"})
OLD, NEW, MIXED = dict(KNOWN.old), dict(KNOWN.new), {"a": "8", "b": "2", "same": "0"}


@pytest.mark.parametrize(
    ("reply", "holds", "answer"),
    [
        (Reply(True), NEW, "harmless"),
        (Reply(True), OLD, "ckptcheck"),
        (Reply(True), MIXED, "ckptcheck"),
        (Reply(True), {"a": "8"}, "ckptcheck"),
        (Reply(True), {**NEW, "same": "7"}, "ckptcheck"),
        (Reply(True), None, "ckptcheck"),
        (Reply(True, undetectable="no version"), NEW, "silent"),
        (Reply(True, misreport="an old version"), NEW, "ckptcheck"),
        (Reply(True, refusal="busy"), NEW, "refused"),
        (Reply(True, refusal="busy"), MIXED, "ckptcheck"),
        (Reply(False, "no"), OLD, "refused"),
        (Reply(False, "no"), NEW, "framework"),
        (Reply(False, "no"), MIXED, "framework"),
        (Reply(False, "no", has_died=True), None, "framework"),
        (Reply(False, is_heard=False), OLD, "refused"),
        (Reply(False, is_heard=False), MIXED, "ckptcheck"),
        (Reply(False, is_heard=False), NEW, "harmless"),
        (Reply(False, "it waits", has_ended=False), None, "unanswered"),
    ],
)
def test_the_answer(reply: Reply, holds: dict[str, str] | None, answer: str) -> None:
    state = None if holds is None else ReceiverState(holds)
    assert judge(Fault("drop", send_all(2)), reply, KNOWN, state, None).answer == answer


@pytest.mark.parametrize(("kind", "answer"), [("drop", "silent"), ("reorder", "harmless")])
def test_a_loss_among_tensors_that_cannot_be_read_is_silent(kind: FaultKind, answer: str) -> None:
    known = KnownStates({**OLD, "packed": ""}, {**NEW, "packed": ""})
    outcome = judge(Fault(kind, send_all(2)), Reply(True), known, ReceiverState({**NEW, "packed": ""}), None)
    assert outcome.answer == answer


def test_a_dead_senders_weights_under_the_old_version_are_seen() -> None:
    outcome = judge(Fault("kill-sender", send_all(2)), Reply(False, is_heard=False), KNOWN, ReceiverState(NEW), "3")
    assert (outcome.answer, outcome.detail) == (
        "ckptcheck",
        "nothing was reported, and the receiver holds the new weights and calls them version 3",
    )


def test_two_updates_may_end_as_either() -> None:
    for holds in (OLD, NEW):
        assert judge(Fault("two-updates", ()), Reply(True), KNOWN, ReceiverState(holds), None).answer == "harmless"
    assert judge(Fault("two-updates", ()), Reply(True), KNOWN, ReceiverState(MIXED), None).answer == "ckptcheck"


def test_scratch_memory_is_not_compared() -> None:
    known = KnownStates({**OLD, "cache": "3"}, {**NEW, "cache": "4"}, frozenset({"cache"}))
    assert (
        judge(Fault("reorder", ()), Reply(True), known, ReceiverState({**NEW, "cache": "5"}), None).answer == "harmless"
    )


@pytest.mark.parametrize("buckets", [2, 3, 4])
def test_every_kind_is_planned_and_every_bucket_dropped(buckets: int) -> None:
    faults = plan_faults(buckets, has_wire=True, pause_modes=("keep", "abort"))
    assert {fault.kind for fault in faults} | {"poison"} == set(TITLES)
    assert sum(fault.kind == "drop" for fault in faults) == buckets
    assert sum(fault.kind == "kill-sender" for fault in faults) == buckets + 1
    assert [fault.place for fault in faults if fault.kind == "generation"] == ["keep", "abort"]
    assert faults[-1].kind == "kill-receiver"
    for fault in faults:
        if fault.kind == "drop":
            sent = {event.bucket for event in fault.events if isinstance(event, Parcel)}
            assert len(sent) == buckets - 1
