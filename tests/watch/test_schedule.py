"""A watch without time for all bytes looks at a group of tensors at a time: what is lost is named, and what is sound is quiet."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.watch import SyncWarning, Watch, module
from ckptcheck.watch.schedule import MOST_GROUPS, PARTS, WITHIN, Schedule

torch = pytest.importorskip("torch")

ROWS, WIDTH, GROUPS = 24, 8, 2
LAYERS = range(4)
MANY = [f"layers.{layer}.{name}.weight" for layer in range(40) for name in ("q_proj", "up_proj", "down_proj")]
NAMES = [f"layers.{layer}.{name}.weight" for layer in LAYERS for name in ("up_proj", "down_proj")]


class Engine(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Matrices under the trainer's names. `deaf` are those that it does not take; it keeps `reshaped` in another shape."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.deaf: tuple[str, ...] = ()
        self.reshaped: tuple[str, ...] = ()
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in LAYERS)
        for layer in self.layers:
            layer.up_proj, layer.down_proj = (
                torch.nn.Linear(WIDTH, ROWS, bias=False),
                torch.nn.Linear(WIDTH, ROWS, bias=False),
            )
        self.to(dtype)

    def load(self, weights: Any) -> None:
        for name, value in weights:
            if name in self.deaf:
                continue
            held = self.get_parameter(name)
            held.data = (value.view(ROWS // 2, 2 * WIDTH) if name in self.reshaped else value).to(held.dtype).clone()


@pytest.fixture
def engine() -> Engine:
    torch.manual_seed(0)
    return Engine()


def run_syncs(
    engine: Engine, watch: Watch, first: int, last: int, weights: dict[str, Any], sparse: bool = False
) -> None:
    """Sync the weights of steps. sparse: a step changes one row of each matrix, else all."""
    for step in range(first, last):
        for number, value in enumerate(weights.values()):
            value[(7 * step + 5 * number) % ROWS if sparse else slice(None)] += 1.0
        with watch(step=step) as sync:
            engine.load(sync.sent(iter(weights.items())))


def start(engine: Engine, found: list[str]) -> tuple[Watch, dict[str, Any]]:
    """Return a watch that has seen two whole syncs and then decided for groups, and the trainer's weights."""
    watch = Watch(
        module(engine), on=lambda finding: found.append(f"{finding.code} {finding.message}"), share=1e6, budget=60.0
    )
    weights = {name: torch.randn(ROWS, WIDTH) for name in NAMES}
    run_syncs(engine, watch, 0, 2, weights)
    watch.schedule.groups = GROUPS
    watch.schedule.choose_groups = lambda: GROUPS  # type: ignore[method-assign]
    return watch, weights


def look(own: Schedule, spent: float) -> set[str]:
    """Have a sync that takes so many seconds of the CPU for all tensors; return what it looked at."""
    own.begin()
    seen = {name for name in MANY if own.includes(name)}
    own.note(spent * len(seen) / len(MANY), len(seen) / len(MANY))
    return seen


def give_steps_of(seconds: float, own: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each sync of a schedule begin so long after the one before."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr("ckptcheck.watch.schedule.time", SimpleNamespace(monotonic=lambda: next(clock)))


def test_a_group_is_looked_at_twice_and_all_tensors_have_their_turn() -> None:
    own = Schedule(0.02, 1.0)
    own.groups, own.choose_groups = 4, lambda: 4  # type: ignore[method-assign]
    seen, labels = set[str](), []
    for _ in range(8):
        own.begin()
        labels.append(own.label)
        seen |= {name for name in MANY if own.includes(name)}
        own.note(0.1)
    assert labels == ["1/4", "1/4", "2/4", "2/4", "3/4", "3/4", "4/4", "4/4"]
    assert seen == set(MANY)


def test_groups_become_as_small_as_the_share_of_a_step_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Schedule(0.02, 1.0)
    give_steps_of(10.0, own, monkeypatch)
    for spent in (5.0, 0.5):  # the first sync also loads code
        look(own, spent)
    assert own.groups == 4, "0.5 s for all, and 0.2 s are allowed"
    for _ in range(20):
        look(own, 40.0)
    assert own.groups == PARTS, "a second of a sync is the most"
    for _ in range(4):
        look(own, 7.0)
    assert own.groups == MOST_GROUPS, "the share does not suffice, and each tensor has its turn nevertheless"
    for _ in range(20):
        look(own, 0.1)
    assert own.groups == 1, "what became cheap is looked at as a whole again"


@pytest.mark.parametrize("load", range(12))
def test_every_tensor_has_its_turn_within_sixteen_syncs_whatever_the_load(
    load: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a look jumps up to a hundredfold from one sync to the next, within the budget."""
    chance, own = random.Random(load), Schedule(0.02, 100.0)
    give_steps_of(1.0, own, monkeypatch)
    looks = [look(own, 0.01 * chance.choice([1, 1, 3, 10, 100])) for _ in range(200)]
    for first in range(2, len(looks) - WITHIN):
        assert set().union(*looks[first : first + WITHIN]) == set(MANY)


def test_one_slow_check_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Schedule(0.02, 1.0)
    give_steps_of(1.0, own, monkeypatch)
    for spent in (0.004, 0.004, 0.5, 0.004, 0.004, 0.004):
        assert look(own, spent) == set(MANY)
    own.begin()
    own.note(math.inf)  # the budget ended it
    assert own.groups == 2
    sizes = [len(look(own, 0.004)) for _ in range(4)]
    assert sizes[-1] == len(MANY)


def test_a_suspicion_makes_the_next_two_syncs_look_at_all() -> None:
    own = Schedule(0.02, 1.0)
    own.groups, own.choose_groups = 4, lambda: 4  # type: ignore[method-assign]
    looks = [look(own, 1.0) for _ in range(WITHIN)]
    assert all(len(each) < len(MANY) for each in looks)
    own.look_whole()
    own.look_whole()
    assert [len(look(own, 1.0)) == len(MANY) for _ in range(4)] == [True, True, False, False]
    own.look_whole()
    assert len(look(own, 1.0)) < len(MANY), "once in a round: a job with many findings pays for no more"


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sound_job_is_quiet(engine: Engine, sparse: bool, dtype: Any) -> None:
    found: list[str] = []
    engine.to(dtype)
    engine.reshaped = (NAMES[3],)
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 60, weights, sparse)
    assert found == []
    assert watch.last[-1].group.endswith("/2")


@pytest.mark.parametrize("background", [True, False])
def test_an_engine_that_casts_is_quiet_where_steps_round_to_nothing_and_a_lost_tensor_is_named(
    engine: Engine, background: bool
) -> None:
    """What was sent is cast as the engine does, which tells whether it had to change."""
    found: list[str] = []
    engine.to(torch.bfloat16)
    watch, weights = start(engine, found)
    watch.background = background
    for step in range(2, 40):
        with watch(step=step) as sync:
            for number, value in enumerate(weights.values()):
                value += 1.0 if (step + number) % 3 == 0 else 1e-7
            engine.load(sync.sent(iter(weights.items())))
        watch.wait()
    assert found == []
    last = watch.last[-1]
    assert last.cast == {place.partition("/")[2]: value for place, value in last.held.items()}
    engine.deaf = (NAMES[2],)
    run_syncs(engine, watch, 40, 46, weights)
    watch.wait()
    assert any(line.startswith("HIS001") and NAMES[2] in line for line in found), found


def test_modules_that_were_exchanged_are_not_taken_for_stale_ones(engine: Engine) -> None:
    """The next sync looks for the tensors anew; what it tells is that the engine was changed in between."""
    found: list[str] = []
    watch, weights = start(engine, found)
    watch.background = True
    run_syncs(engine, watch, 2, 6, weights)
    watch.wait()
    engine.layers[1].up_proj = torch.nn.Linear(WIDTH, ROWS, bias=False)
    run_syncs(engine, watch, 6, 7, weights)
    watch.wait()
    assert watch.last[-1].held
    assert [line.partition(" ")[0] for line in found] == ["HIS023"]


@pytest.mark.parametrize("lost", NAMES)
def test_a_lost_tensor_is_named(engine: Engine, lost: str) -> None:
    found: list[str] = []
    engine.reshaped = (NAMES[3],)
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 9, weights)
    engine.deaf = (lost,)
    run_syncs(engine, watch, 9, 9 + 2 * GROUPS + 1, weights)
    assert any(line.startswith("HIS001") and lost in line for line in found), found


def test_an_export_that_stands_still_is_named(engine: Engine) -> None:
    found: list[str] = []
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 10, weights)
    for step in range(10, 16):
        with watch(step=step) as sync:
            engine.load(sync.sent(iter(weights.items())))
    assert {line[:6] for line in found} == {"HIS002"}


def test_tensors_that_arrive_as_something_else_are_named(engine: Engine) -> None:
    found: list[str] = []
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 6, weights)
    for step in range(6, 12):
        with watch(step=step) as sync:
            for value in weights.values():
                value += 1.0
            engine.load(sync.sent(iter(weights.items())))
            engine.get_parameter(NAMES[0]).data[ROWS - 1] = step
    assert any(line.startswith("HIS008") for line in found), found


def test_a_watch_of_groups_warns_of_nothing_else(engine: Engine, recwarn: pytest.WarningsRecorder) -> None:
    watch, weights = start(engine, [])
    run_syncs(engine, watch, 2, 8, weights)
    assert not [warning for warning in recwarn if issubclass(warning.category, SyncWarning)]
