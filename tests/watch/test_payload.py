"""What is sent in place of names and tensors is digested too: a delta that comes again is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ckptcheck.watch import SyncWarning, Watch, adapters, watch_state
from ckptcheck.watch.payload import find_tensors


@dataclass
class Flush:
    """As slime and verl pack a delta: values beside a table of contents."""

    values: Any
    index: dict[str, Any] = field(default_factory=dict)
    is_last: bool = True


def flushes(step: int) -> Iterator[Any]:
    """Yield a delta as verl's `delta_flush` has it: (named tensors, is it the last)."""
    for number in range(2):
        values = np.full(1024, 10 * step + number, np.float32)
        yield [("__delta_spec__", np.arange(4)), ("__values__", values)], number == 1


def test_tensors_are_found_wherever_they_lie() -> None:
    value = np.zeros(2)
    assert [place for place, _ in find_tensors(next(flushes(0)))] == ["0.__delta_spec__", "0.__values__"]
    assert [place for place, _ in find_tensors(Flush(value, {"rows": value}))] == ["values", "index.rows"]
    assert [place for place, _ in find_tensors(value)] == ["0"]
    assert [place for place, _ in find_tensors([value, [value, "text"], None, 3])] == ["0", "1.0"]
    endless: list[Any] = []
    endless.append(endless)
    assert list(find_tensors(endless)) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_delta_is_digested_and_one_that_comes_again_is_named(background: bool) -> None:
    found: list[str] = []
    watch = Watch(on=lambda finding: found.append(f"{finding.code} {finding.message}"), background=background)
    for step, delta in enumerate((0, 1, 2, 2, 3)):
        with watch(step=step) as sync:
            assert len(list(sync.sent(flushes(delta)))) == 2
    assert watch.wait(60)
    assert found == ["HIS018 step 3: the trainer sent the same delta of 8,256 bytes as at step 2"]
    last = watch.last[-1]
    assert list(last.payload) == ["0.0.__delta_spec__", "0.0.__values__", "1.0.__delta_spec__", "1.0.__values__"]
    assert (last.sent, last.nbytes, last.payload_bytes) == ({}, 0, 8256)


def test_a_large_delta_is_checked_beside_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_state, "SMALL", 4096)
    watch, in_background = Watch(background=None), []
    for step in range(3):
        with watch(step=step) as sync:
            list(sync.sent(flushes(step)))
            in_background.append(watch.is_in_background)
    assert watch.wait(60)
    assert in_background == [False, True, True]


def test_what_has_no_tensor_is_still_said() -> None:
    watch = Watch()
    with pytest.warns(SyncWarning, match="it comes as int, not as names and tensors"), watch(step=0) as sync:
        list(sync.sent(iter([*flushes(0), 7])))
    assert watch.last[0].payload == {}


def test_verls_deltas_pass_its_adapter() -> None:
    class Rollout:
        async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **keywords: Any) -> int:
            return sum([1 async for _ in weights])

    async def stream(step: int) -> AsyncIterator[Any]:
        for flush in flushes(step):
            yield flush

    import asyncio

    found: list[str] = []
    watch = Watch(on=lambda finding: found.append(finding.code))
    rollout = adapters.verl(Rollout(), watch)
    for step, delta in enumerate((0, 1, 1)):
        sending = rollout.update_weights(stream(delta), wire_format="delta_flush", global_steps=step)
        assert asyncio.run(sending) == 2
    assert found == ["HIS018"]
