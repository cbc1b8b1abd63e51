"""What a watch says that knows the trainer's parameters, or reads the engine before a sync too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.watch import Watch, module
from ckptcheck.watch.tensor_difference import describe_difference
from ckptcheck.watch.trainer_side import TrainerSide, clean_name
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

WIDTH = 16
NAMES = [f"{number}.weight" for number in range(4)]
Change = Callable[[str, Any], Any]


def build_model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in NAMES))


class Job:
    """A trainer and an engine. export: what is sent of a parameter. arrive: what the engine takes of what is sent."""

    def __init__(self, export: Change = lambda name, value: value, arrive: Change = lambda name, value: value) -> None:
        self.trainer, self.engine = build_model(), build_model()
        self.export, self.arrive = export, arrive
        self.said: list[str] = []
        self.watch = Watch(module(self.engine), on=lambda each: self.said.append(f"{each.code} {each.message}"))
        self.side = TrainerSide(self.trainer)
        self.step = 0

    def sync(self) -> None:
        with self.watch(step=self.step) as sync:
            sync.trained_by(self.side.begin())
            for name, value in sync.sent(self._walk()):
                if (taken := self.arrive(name, value)) is not None:
                    self.engine.get_parameter(name).data.copy_(taken)
        self.step += 1
        with torch.no_grad():
            for parameter in self.trainer.parameters():
                if parameter.requires_grad:
                    parameter += 0.01 * torch.randn(parameter.shape)

    def _walk(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self.trainer.named_parameters():
            if (value := self.export(name, parameter.data)) is not None:
                yield name, value

    def run(self, syncs: int = 4) -> list[str]:
        for _ in range(syncs):
            self.sync()
        return self.said


def change(name: str, into: Callable[[Any], Any]) -> Change:
    return lambda each, value: into(value) if each == name else value


def copy_once() -> Callable[[Any], Any]:
    kept: list[Any] = []
    return lambda value: (kept or kept.append(value.clone()) or kept)[0]  # type: ignore[func-returns-value]


def test_a_sound_job_is_quiet_with_copies_and_casts_and_frozen_parts() -> None:
    assert Job().run() == []
    assert Job(export=lambda name, value: value.clone()).run() == []
    job = Job(export=lambda name, value: value.bfloat16())
    job.engine.bfloat16()
    assert job.run() == []
    job = Job()
    job.trainer[1].weight.requires_grad_(False)
    assert job.run() == []
    assert {tuple(sync.frozen) for sync in job.watch.last} == {("1.weight",)}


@pytest.mark.parametrize(
    ("into", "text"),
    [
        (lambda value: value * 0.5, "1.weight: multiplied by 0.5"),
        (lambda value: value.bfloat16(), "1.weight: rounded to bfloat16"),
        (lambda value: value.bfloat16().float(), "1.weight: rounded to bfloat16"),
        (lambda value: torch.zeros_like(value), "1.weight: all zero"),
        (lambda value: value.clone().fill_diagonal_(float("nan")), "1.weight: NaN in 16 of 256 numbers"),
        (lambda value: value.t().contiguous(), "1.weight: transposed"),
        (lambda value: value.flip(0), "1.weight: its rows in another order"),
    ],
)
def test_what_is_sent_otherwise_is_named(into: Callable[[Any], Any], text: str) -> None:
    said = Job(export=change("1.weight", into)).run(1)
    assert said == [
        f"HIS025 step 0: 1 tensor was sent with other values than the trainer's own parameter has; {text}",
    ]


def test_a_copy_of_an_earlier_step_and_another_parameter_are_named() -> None:
    said = Job(export=change("1.weight", copy_once())).run()
    assert said == [
        "HIS025 step 1: 1 tensor was sent with other values than the trainer's own parameter has; the export has the values of"
        " step 0, from before the step"
    ]
    job = Job()
    job.export = change("1.weight", lambda value: job.trainer[2].weight.data)
    assert job.run(1) == [
        "HIS025 step 0: 1 tensor was sent with other values than the trainer's own parameter has; 1.weight was sent with the values"
        " of 2.weight"
    ]


def test_what_is_trained_and_never_sent_is_named_at_the_first_sync() -> None:
    said = Job(export=change("3.weight", lambda value: None)).run(1)
    assert said == [
        "HIS017 step 0: 1 tensor that the trainer trains was never sent, so that the engine keeps its first values: 3.weight"
    ]


@pytest.mark.parametrize(
    ("into", "text"),
    [
        (lambda value: value * 2, "multiplied by 2"),
        (lambda value: value.bfloat16().float(), "rounded to bfloat16"),
        (lambda value: torch.zeros_like(value), "all zero"),
    ],
)
def test_how_the_engine_differs_is_said_from_the_first_sync_on(into: Callable[[Any], Any], text: str) -> None:
    said = Job(arrive=change("1.weight", into)).run()
    assert said == [
        f"HIS008 step 0: the engine holds other values than the trainer sent in 1 tensor; 1.weight: {text}",
    ]


@pytest.mark.parametrize("first", [1, 20])
def test_how_the_engine_differs_is_said_where_nobody_knows_the_parameters(first: int) -> None:
    """The first syncs keep a copy of all that is sent, later ones of what the sync before had wrong."""
    wrong = change("1.weight", lambda value: value.bfloat16().float())
    job = Job(arrive=lambda name, value: wrong(name, value) if job.step >= first else value)
    for _ in range(first + 2):
        with job.watch(step=job.step) as sync:
            for name, value in sync.sent((name, value + job.step) for name, value in job._walk()):
                job.engine.get_parameter(name).data.copy_(job.arrive(name, value))
        job.step += 1
    job.watch.wait()
    told = [sync.altered for sync in job.watch.last if (sync.step or 0) >= first]
    assert told[1] == {"0/1.weight": "rounded to bfloat16"}
    assert told[0] == (told[1] if first == 1 else {})
    assert [line.partition(":")[0] for line in job.said] == [f"HIS008 step {first}"]


def test_what_is_written_between_two_syncs_is_named() -> None:
    job = Job()
    job.run(3)
    first = build_model()
    job.engine.load_state_dict(first.state_dict())
    job.sync()
    assert job.said == [
        "HIS023 step 3: 4 tensors of the engine changed between the sync of step 2 and this one: 0.weight, 1.weight, 2.weight and 1"
        " more; they went back to what the engine held at step 0"
    ]


def test_rollouts_without_a_sync_are_named_once() -> None:
    job = Job()
    job.run(2)
    for step in (2, 3):
        job.watch.note_missing(step)
    assert job.said == [
        "HIS014 step 2: a sync is missing: rollouts began without the weights of this step; they were sampled from those of step 1"
    ]


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """A linear layer as PEFT wraps it."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(WIDTH, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, WIDTH, bias=False)})
        self.scaling, self.active_adapters = {"default": 2.0}, ["default"]
        self.base_layer.weight.requires_grad_(False)

    @property
    def delta(self) -> Any:
        return 2.0 * self.lora_B["default"].weight.detach() @ self.lora_A["default"].weight.detach()


@pytest.mark.parametrize(
    ("times", "dtype", "said"),
    [
        (1, torch.float32, []),
        (1, torch.bfloat16, []),
        (0, torch.float32, ["HIS025 step 0: the adapter that is trained is not merged into what is sent"]),
        (2, torch.bfloat16, ["HIS025 step 0: the adapter that is trained is merged twice into what is sent"]),
        (0.5, torch.float32, ["HIS025 step 0: the adapter that is trained is merged 0.5 times into what is sent"]),
    ],
)
def test_how_often_an_adapter_is_merged(times: float, dtype: Any, said: list[str]) -> None:
    job = Job()
    job.trainer = torch.nn.ModuleDict({"q_proj": Adapted()})
    job.trainer["q_proj"].base_layer.to(dtype)
    job.engine = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(WIDTH, WIDTH, bias=False)}).to(dtype)
    job.watch.engine = module(job.engine)
    job.side = TrainerSide(job.trainer)
    assert list(job.side.list_trained()) == ["q_proj.weight"]

    def walk() -> Iterator[tuple[str, Any]]:
        layer = job.trainer["q_proj"]
        before = layer.base_layer.weight.data.clone()
        layer.base_layer.weight.data += (times * layer.delta).to(dtype)
        yield "q_proj.weight", layer.base_layer.weight.data
        layer.base_layer.weight.data.copy_(before)

    job._walk = walk  # type: ignore[method-assign]
    assert job.run(3) == said


def test_names_of_wrapped_parameters() -> None:
    assert (
        clean_name("base_model.model.model.embed_tokens.modules_to_save.default.weight") == "model.embed_tokens.weight"
    )
    assert clean_name("_orig_mod.model.norm.weight") == "model.norm.weight"


def test_differences_in_words() -> None:
    ours = torch.arange(32.0).view(8, 4)
    assert describe_difference(ours, ours.clone()) == ""
    assert describe_difference(ours, ours[:4]) == "of shape (4, 4) instead of (8, 4)"
    other = ours.clone()
    other[4:] = 0.0
    assert describe_difference(ours, other) == "other values in 4 of 8 rows, from 4 to 7"
    assert describe_difference(ours, ours + 1000.0).startswith("other values, ")
    assert describe_difference(ours.long(), ours.long() + 1) == "other values"


def test_an_engine_that_sleeps_is_not_read_before_a_sync() -> None:
    """A GPU's memory is gone while the engine sleeps: only an adapter that knows better has it read."""
    job = Job()
    asked: list[int] = []

    def held() -> dict[str, str]:
        asked.append(1)
        return {"0/0.weight": str(len(asked))}

    job.watch.engine = SimpleNamespace(name="asleep", alike=True, held=held, version=lambda: None)
    job.run(3)
    assert len(asked) == 3
