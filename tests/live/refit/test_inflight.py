"""Where a response passes to the new weights, and what is not said of it where that cannot be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from ckptcheck.live.refit.inflight import AFTER, TOKENS, InflightRequest, InflightUpdate, find_switch
from ckptcheck.live.runtime.engines.base import EngineInfo, InflightResult, UpdateResult
from ckptcheck.live.runtime.engines.sampling import Generation

OLD = Generation(tuple(range(TOKENS)), (-1.0,) * TOKENS, "length", ("0",) * TOKENS)


class Engine:
    """Says what it is told to say: before, and under way. The new weights give every token -2."""

    info = EngineInfo("told", "1", "float32", 1, "")

    def __init__(self, old: Generation, made: Generation, ok: bool = True) -> None:
        self.old, self.made, self.ok = old, made, ok

    def generate(self, *_: Any, **__: Any) -> list[Generation]:
        return [self.old]

    def update_inflight(self, *_: Any, **__: Any) -> InflightResult:
        return InflightResult(UpdateResult(self.ok, "", 0.0), (self.made,))

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        return [(-2.0,) * (len(tokens) - prompt) for tokens in sequences]


def passed(made: Generation, *, old: Generation = OLD, ok: bool = True, pause: str = "keep") -> InflightRequest:
    busy = InflightUpdate(pause, (1, 2), "1")
    busy.refit(Engine(old, made, ok), [], "reload")  # type: ignore[arg-type]
    assert busy.request is not None
    return busy.request


def made(changed: int, told: int, **more: Any) -> Generation:
    """A response whose tokens are other ones from `changed` on, and said to be of the new weights from `told` on."""
    tokens = tuple(place if place < changed else 500 + place for place in range(TOKENS))
    values = tuple(-1.0 if place < changed else -2.0 for place in range(TOKENS))
    versions = tuple("0" if place < told else "1" for place in range(TOKENS))
    return replace(Generation(tokens, values, "length", versions), **more)


def test_nan_is_far_from_all_but_itself() -> None:
    assert find_switch((nan, nan, -2.0), (nan, nan, nan), (-2.0, -2.0, -2.0)) == (2, 2)
    assert find_switch((-1.0, nan), (-1.0, -1.0), (-1.0, -1.0)) == (0, 1)


@pytest.mark.parametrize(
    ("changed", "told", "misdated"), [(12, 12, False), (12, 11, True), (12, 13, True), (32, 32, False)]
)
def test_versions_have_to_change_where_the_weights_do(changed: int, told: int, misdated: bool) -> None:
    seen = passed(made(changed, told))
    assert (seen.has_version_mismatch, seen.is_truncated) == (misdated, False)


def test_what_the_old_weights_like_alike_tells_nothing() -> None:
    """The token is another one, and as likely: a tie, which the prefix cache may turn."""
    tie = made(12, 20, logprobs=OLD.logprobs)
    assert not passed(tie).is_observable
    assert not passed(tie).has_version_mismatch


def test_old_weights_that_do_not_repeat_themselves_tell_nothing() -> None:
    seen = passed(made(AFTER - 1, 20))
    assert not seen.is_observable
    assert not seen.has_version_mismatch


def test_a_version_that_was_there_before_tells_nothing() -> None:
    seen = passed(made(12, 0), old=replace(OLD, weight_versions=("1",) * TOKENS))
    assert not seen.has_versions
    assert not seen.has_version_mismatch


def test_a_refused_update_changes_nothing_and_one_that_was_applied_is_judged_all_the_same() -> None:
    assert not passed(made(32, 32), ok=False).has_version_mismatch
    assert passed(made(12, 20), ok=False).has_version_mismatch


@pytest.mark.parametrize(
    ("pause", "finish", "cut"),
    [("keep", "abort", True), ("abort", "abort", False), ("abort", "length", True), ("wait", "", True)],
)
def test_a_short_response_is_cut_unless_it_was_to_be_aborted_and_says_so(pause: str, finish: str, cut: bool) -> None:
    short = Generation(OLD.tokens[:10], OLD.logprobs[:10], finish, OLD.weight_versions[:10])
    assert passed(short, pause=pause).is_truncated is cut
