"""A watch that has no time for all bytes looks at some rows of every tensor: what is lost is named, and what is sound is quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ckptcheck.watch import SyncWarning, Watch, module, schedule, watch_state
from ckptcheck.watch.schedule import Schedule
from ckptcheck.watch.tensor_digests import digest_rows

torch = pytest.importorskip("torch")

ROWS, WIDTH, PARTS = 24, 8, 6
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
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose tensors are large enough to be looked at in parts."""
    monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 1)
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
    """Return a watch that has seen two whole syncs and then decided for parts, and the trainer's weights."""
    watch = Watch(
        module(engine), on=lambda finding: found.append(f"{finding.code} {finding.message}"), share=1e6, budget=60.0
    )
    weights = {name: torch.randn(ROWS, WIDTH) for name in NAMES}
    run_syncs(engine, watch, 0, 2, weights)
    watch.schedule.groups, watch.schedule.parts, watch.schedule._number = 2, PARTS, -1
    return watch, weights


def keep_results(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    """Return a function that does the same, and keeps what it returns."""

    def keep(*arguments: Any) -> Any:
        results.append(function(*arguments))
        return results[-1]

    return keep


def test_all_rows_are_looked_at_in_turn_and_each_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 1)
    own = Schedule(0.02, 1.0)
    own.groups, own.parts = 2, PARTS
    rows, labels = [], []
    for _ in range(2 * 2 * PARTS):
        own.begin()
        rows.append(own.choose_rows((ROWS, WIDTH)))
        labels.append(own.label)
    assert labels[:5] == ["1/2, part 1/6", "1/2, part 1/6", "2/2, part 1/6", "2/2, part 1/6", "1/2, part 2/6"]
    assert rows[:6] == [slice(0, 4)] * 4 + [slice(4, 8)] * 2
    assert {row for each in rows if each is not None for row in range(ROWS)[each]} == set(range(ROWS))
    assert own.choose_rows(()) is None
    assert own.choose_rows((1, 10_000)) is None, "one row is whole"
    assert own.choose_rows((3, 10_000)) == slice(2, 3), "fewer rows than parts"


@pytest.mark.parametrize(
    ("shape", "itemsize", "least"),
    [
        ((4096, 4096), 2, 256),
        ((65_536, 2048), 2, 8192),
        ((16_384, 8192), 1, 2048),
        ((1024, 1024), 2, None),
        ((64,), 2, None),
    ],
)
def test_of_a_cast_tensor_more_rows_are_looked_at_around_those_that_were_sent(
    shape: tuple[int, ...], itemsize: int, least: int | None
) -> None:
    own = Schedule(0.02, 1.0)
    own.groups, own.parts = 1, 1024
    for _ in range(2 * own.parts):
        own.begin()
        sent, held = own.choose_rows(shape), own.choose_rows_of_cast(shape, itemsize)
        if sent is None or least is None:
            assert held is None
            continue
        assert held is not None
        assert held.stop - held.start == max(least, sent.stop - sent.start)
        assert 0 <= held.start <= sent.start < sent.stop <= held.stop <= shape[0]


def test_small_tensors_are_looked_at_whole() -> None:
    own = Schedule(0.02, 1.0)
    own.parts = 8
    own.begin()
    assert own.choose_rows((100, 160)) is None
    assert own.choose_rows((64, 256)) == slice(0, 32), "a part has 8,192 elements at least"


def test_of_elements_of_four_bytes_half_as_many_are_looked_at_where_the_engine_holds_the_same() -> None:
    watch = Watch()
    watch.schedule.parts = 1024
    watch.schedule.begin()
    shape = torch.Size((1024, 64))
    assert watch.choose_sent_rows("w", shape, torch.float32) == (slice(0, 128), None), "not known: it may cast them"
    watch.stored_as_sent = {"w"}
    assert watch.choose_sent_rows("w", shape, torch.float32) == (slice(0, 64), None)
    assert watch.choose_sent_rows("w", shape, torch.bfloat16) == (slice(0, 128), None)


def test_both_sides_look_at_the_same_rows_whatever_becomes_known_between_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the sync before may end in its thread while this one runs."""
    watch, weights = start(engine, [])
    watch.stored_as_sent = set()
    with watch(step=2) as sync:
        engine.load(sync.sent(iter(weights.items())))
        watch.stored_as_sent = set(NAMES)
        monkeypatch.setattr(schedule, "LEAST_ELEMENTS", 100)
    last = watch.last[-1]
    assert {place.partition("/")[2]: value for place, value in last.held.items()} == last.sent


def test_parts_become_as_small_as_the_share_asks() -> None:
    own = Schedule(0.02, 1.0)
    for spent in (0.5, 0.39):
        own.begin()
        own.note(spent, 0.2)
    # 0.39 s for all, 4 ms are allowed
    assert (own.groups, own.parts) == (5, 59)
    for spent in (0.0039, 0.0039):
        own.begin()
        own.note(spent, 0.2)
    assert (own.groups, own.parts) == (5, 59), "this is within the share"
    parts = []
    for spent in (0.0044, 0.0044) * 3:
        own.begin()
        own.note(spent, 0.2)
        parts.append(own.parts)
    assert parts[1::2] == [195, 644, 644], (
        "they cost more than was expected; then what is left is the number of tensors"
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sound_job_is_quiet(engine: Engine, sparse: bool, dtype: Any) -> None:
    found: list[str] = []
    engine.to(dtype)
    engine.reshaped = (NAMES[3],)
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 60, weights, sparse)
    assert found == []
    assert watch.last[-1].group.endswith("/6")
    assert watch.stored_as_sent == (set(NAMES) if dtype is torch.float32 else set())
    assert watch.reshaped == {NAMES[3]}


def test_an_engine_that_does_more_than_a_cast_is_quiet_and_a_lost_tensor_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows are looked at, and more of them in the engine than of what is sent."""
    monkeypatch.setattr(schedule, "CAST_ELEMENTS", 8 * WIDTH)
    found: list[str] = []
    engine.to(torch.bfloat16)
    watch, weights = start(engine, found)
    watch.not_as_cast |= set(NAMES)
    watch.casts.clear()
    chosen = []
    monkeypatch.setattr(watch.schedule, "choose_rows_of_cast", keep_results(watch.schedule.choose_rows_of_cast, chosen))
    run_syncs(engine, watch, 2, 60, weights, sparse=True)
    assert found == []
    assert {rows.stop - rows.start for rows in chosen} == {8}
    engine.deaf = (NAMES[2],)
    run_syncs(engine, watch, 60, 66, weights)
    assert any(line.startswith("HIS001") and NAMES[2] in line for line in found), found


@pytest.mark.parametrize("background", [True, False])
def test_an_engine_that_casts_is_quiet_where_steps_round_to_nothing_and_a_lost_tensor_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """What was sent is cast as the engine does, which tells whether it had to change."""
    monkeypatch.setattr(watch_state, "CAST_SAMPLE", 4 * WIDTH)
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
    assert set(watch.casts) == set(NAMES)
    last = watch.last[-1]
    assert last.cast == {place.partition("/")[2]: value for place, value in last.held.items()}
    engine.deaf = (NAMES[2],)
    run_syncs(engine, watch, 40, 46, weights)
    watch.wait()
    assert any(line.startswith("HIS001") and NAMES[2] in line for line in found), found


def test_an_engine_that_holds_other_rows_is_not_held_to_a_cast(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_state, "CAST_SAMPLE", 4 * WIDTH)
    load = engine.load
    engine.load = lambda weights: load((name, value.flip(0)) for name, value in weights)
    found: list[str] = []
    engine.to(torch.bfloat16)
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 20, weights)
    assert found == []
    assert (watch.not_as_cast, watch.casts) == (set(NAMES), {})


def test_modules_that_were_exchanged_are_not_taken_for_stale_ones(engine: Engine) -> None:
    """Beside the job it is seen that what was read is not the engine's any more; the next sync looks anew."""
    found: list[str] = []
    watch, weights = start(engine, found)
    watch.background = True
    run_syncs(engine, watch, 2, 6, weights)
    watch.wait()
    engine.layers[1].up_proj = torch.nn.Linear(WIDTH, ROWS, bias=False)
    run_syncs(engine, watch, 6, 7, weights)
    watch.wait()
    assert watch.last[-1].sent
    assert watch.last[-1].held == {}
    run_syncs(engine, watch, 7, 8, weights)
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
    run_syncs(engine, watch, 9, 14, weights)
    assert any(line.startswith("HIS001") and lost in line for line in found), found


def test_an_export_that_stands_still_is_named(engine: Engine) -> None:
    found: list[str] = []
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 10, weights)
    for step in range(10, 16):
        with watch(step=step) as sync:
            engine.load(sync.sent(iter(weights.items())))
    assert {line[:6] for line in found} == {"HIS002"}


def test_rows_that_arrive_as_something_else_are_named(engine: Engine) -> None:
    found: list[str] = []
    watch, weights = start(engine, found)
    run_syncs(engine, watch, 2, 6, weights)
    for step in range(6, 6 + 4 * PARTS):
        with watch(step=step) as sync:
            for value in weights.values():
                value += 1.0
            engine.load(sync.sent(iter(weights.items())))
            engine.get_parameter(NAMES[0]).data[ROWS - 1] = step
    assert any(line.startswith("HIS008") for line in found), found


def test_a_digest_of_rows_knows_them_in_any_layout() -> None:
    tensor = torch.randn(8, 4).bfloat16()
    other = tensor.clone()
    other[5, 1] += 1
    assert digest_rows(tensor, slice(0, 4)) == digest_rows(other, slice(0, 4))
    assert digest_rows(tensor, slice(4, 8)) != digest_rows(other, slice(4, 8))
    assert digest_rows(tensor.t().contiguous().t(), slice(2, 6)) == digest_rows(tensor, slice(2, 6))
    values = torch.randn(8, 4)
    assert digest_rows(values.numpy(), slice(2, 6)) == digest_rows(values, slice(2, 6))


def test_a_watch_of_parts_warns_of_nothing_else(engine: Engine, recwarn: pytest.WarningsRecorder) -> None:
    watch, weights = start(engine, [])
    run_syncs(engine, watch, 2, 8, weights)
    assert not [warning for warning in recwarn if issubclass(warning.category, SyncWarning)]
