"""The records that the sides of one job keep apart, read as one: what was sent and did not come, or came otherwise, is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.runs.history.history import open_joined_history
from ckptcheck.runs.history.record import GapRecord, LoggedStep, Record, SyncRecord

NAMES = [f"layers.{layer}.{name}.weight" for layer in range(3) for name in ("up_proj", "down_proj")]
STEPS = range(6)
Change = Callable[[int, dict[str, str]], dict[str, str] | None]


def digest(name: str, step: int) -> str:
    return hashlib.md5(f"{name} {step}".encode(), usedforsecurity=False).hexdigest()


def write(folder: Path, engines: list[Change], ranks: int = 1) -> list[Path]:
    """Write the records of a job. engines: what becomes of what is sent on the way to each; None: nothing arrives."""
    paths = []
    for rank in range(ranks):
        paths.append(folder / f"sender.{rank}.jsonl")
        record = Record(paths[-1])
        for step in STEPS:
            sent = {name: digest(name, step) for name in NAMES[rank::ranks]}
            partial = "each rank sends its part" if ranks > 1 else ""
            record.append(
                SyncRecord(run=f"rank {rank}", step=step, sent=sent, nbytes=8, partial=partial, time=time(step))
            )
    for number, change in enumerate(engines):
        paths.append(folder / f"engine.{number}.jsonl")
        record, held = Record(paths[-1]), {f"0/{name}": digest(name, -1) for name in NAMES}
        counted = 0
        for step in STEPS:
            taken = change(step, {name: digest(name, step) for name in NAMES})
            if taken is None:
                continue
            held = held | {f"0/{name}": value for name, value in taken.items()}
            record.append(
                # an engine counts syncs, because it knows no steps
                SyncRecord(
                    run=f"engine {number}", step=max(0, counted - 1), sent=taken, held=held, alike=True, time=time(step)
                )
            )
            counted += 1
    return paths


def time(step: int) -> str:
    return f"2026-01-01T00:0{step}:00Z"


def sound(step: int, sent: dict[str, str]) -> dict[str, str]:
    return sent


def lose(step: int, sent: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in sent.items() if step < 3 or name != NAMES[2]}


def garble(step: int, sent: dict[str, str]) -> dict[str, str]:
    return sent | {NAMES[2]: digest("other", step)} if step >= 3 else sent


def miss(step: int, sent: dict[str, str]) -> dict[str, str] | None:
    return sent if step != 3 else None


LOST = f"HIS007 step 3: 1 of 6 tensors that were sent did not arrive at an engine: {NAMES[2]}; it shows at 3 syncs, last at step 5"
OTHER = (
    "HIS008 step 3: 1 tensor came to the engine with other values than were sent; it shows at 3 syncs, last at step 5"
)


@pytest.mark.parametrize(
    ("engines", "ranks", "expected"),
    [
        ([sound], 1, []),
        ([sound, sound], 1, []),
        ([sound], 2, []),
        ([lose], 1, [LOST]),
        ([sound, lose], 2, [LOST]),
        ([garble], 1, [OTHER]),
        ([miss], 1, ["HIS014 step 3: what was sent did not arrive at the engine"]),
        ([sound, miss], 1, ["HIS014 step 3: what was sent did not arrive at 1 of 2 engines"]),
    ],
)
def test_what_was_sent_and_did_not_come_is_named(
    engines: list[Change], ranks: int, expected: list[str], tmp_path: Path
) -> None:
    first, *others = write(tmp_path, engines, ranks)
    report = ckptcheck.history(first, others)
    assert [f"{each.code} {each.message}" for each in report.findings] == expected


def test_a_record_that_begins_later_and_an_engine_that_casts_are_no_findings(tmp_path: Path) -> None:
    """What arrives in another dtype compares with nothing; the syncs before an engine's first are not missing."""
    sender, engine = write(tmp_path, [lambda step, sent: {name: digest(value, 0) for name, value in sent.items()}])
    lines = engine.read_bytes().splitlines(keepends=True)
    engine.write_bytes(b"".join(lines[2:]))
    assert ckptcheck.history(sender, engine).findings == ()
    history = open_joined_history([sender, engine])
    assert sorted(history.arrived) == [2, 3, 4, 5]
    assert {len(sync.held) for sync in history.syncs} == {0, 6}


def test_what_the_driver_logs_comes_to_the_sync_that_gave_the_weights(tmp_path: Path) -> None:
    """The driver of verl counts one step more than the sync has that its tokens were drawn with."""
    driver = Record(tmp_path / "driver.jsonl")
    for step in STEPS:
        gap = GapRecord("rollout_corr/k3_kl", 2e-6 if step >= 3 else 3e-14, step + 1, "float32")
        logged = LoggedStep(step + 1, 4e9)
        driver.append(SyncRecord(run="driver", step=step + 1, gap=gap, logged=logged, time=time(step)))
    gap = "HIS024 step 3: rollout_corr/k3_kl is 2e-06"
    for number, (change, expected) in enumerate(
        {lose: [("error", LOST), ("info", gap)], sound: [("error", gap)]}.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        sender, *others = write(folder, [change])
        found = ckptcheck.history(sender, [*others, driver.path]).findings
        said = [(each.severity, f"{each.code} {each.message}") for each in found]
        odd = ("warning", "HIS032 step 1: the norm of the gradient is 4e+09; it is above 1,000 at 6 of 6 steps")
        assert odd in said
        assert [(severity, text[: len(start)]) for (severity, text), (_, start) in zip(
            [each for each in said if each != odd], expected, strict=True)] == expected  # fmt: skip
    assert [each.code for each in ckptcheck.history(driver.path).findings] == ["HIS024", "HIS032"]
