"""A watch without time for all bytes looks at a group of tensors at a time: what is lost is named, and what is sound is quiet."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcheck.watch import SyncWarning, Watch, module
from ckptcheck.watch.schedule import MOST_GROUPS, Schedule

torch = pytest.importorskip("torch")

ROWS, WIDTH, GROUPS = 24, 8, 2
LAYERS = range(4)
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
    watch.schedule.groups, watch.schedule._number = GROUPS, -1
    return watch, weights


def test_a_group_is_looked_at_twice_and_all_tensors_have_their_turn() -> None:
    own = Schedule(0.02, 1.0)
    own.groups, seen, labels = 3, set(), []
    for _ in range(6):
        own.begin()
        labels.append(own.label)
        seen |= {name for name in NAMES if own.includes(name)}
    assert labels == ["1/3", "1/3", "2/3", "2/3", "3/3", "3/3"]
    assert seen == set(NAMES)


def test_groups_become_as_small_as_the_share_asks() -> None:
    own = Schedule(0.02, 1.0)
    for spent in (5.0, 0.39):  # the first sync also loads code
        own.begin()
        own.note(spent, 2.0)
    assert own.groups == 10, "0.39 s for all, and 40 ms are allowed"
    for _ in range(20):
        own.begin()
        own.note(0.04, 2.0)
    assert own.groups == 10, "this is within the share"
    for _ in range(20):
        own.begin()
        own.note(4.0, 2.0)
    assert own.groups == MOST_GROUPS


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
    """The next sync looks for the tensors anew."""
    found: list[str] = []
    watch, weights = start(engine, found)
    watch.background = True
    run_syncs(engine, watch, 2, 6, weights)
    watch.wait()
    engine.layers[1].up_proj = torch.nn.Linear(WIDTH, ROWS, bias=False)
    run_syncs(engine, watch, 6, 7, weights)
    watch.wait()
    assert watch.last[-1].held
    assert found == []


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
