"""NaN, Inf, zeros and powers of two in what is sent and held are named, and break no record; training as such is quiet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import Watch, module

torch = pytest.importorskip("torch")

NAMES = [f"layers.{number}.weight" for number in range(4)]


class Engine(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Takes what it is given, after `change`."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 8, bias=False) for _ in NAMES)
        self.to(dtype)
        self.change: dict[str, Any] = {}

    def load(self, weights: Any) -> None:
        for name, value in weights:
            held = self.get_parameter(name)
            held.data = self.change.get(name, lambda value: value)(value).to(held.dtype).clone()


def train(
    tmp_path: Path, *, sent: Any = None, held: Any = None, dtype: Any = torch.float32, first: int = 6, steps: int = 9
) -> tuple[list[str], list[dict[str, str]]]:
    """Sync for some steps, with one tensor changed from a step on. Return the findings of odd values, and what was recorded."""
    torch.manual_seed(0)
    found: list[str] = []
    engine, record = Engine(dtype), tmp_path / "syncs.jsonl"
    watch = Watch(
        module(engine),
        record=record,
        on=lambda finding: (
            found.append(f"{finding.code} {finding.message} {finding.key}")
            if finding.code in ("HIS008", "HIS029")
            else None
        ),
    )
    weights = {name: torch.randn(8, 16) for name in NAMES}
    for step in range(steps):
        for value in weights.values():
            value += 1e-3 * torch.randn(8, 16)
        engine.change = {NAMES[2]: held} if held is not None and step >= first else {}
        changed = {NAMES[1]: sent(weights[NAMES[1]])} if sent is not None and step >= first else {}
        with watch(step=step) as sync:
            engine.load(sync.sent(iter({**weights, **changed}.items())))
    history = open_history(record)
    assert not history.damaged_lines
    return found, [sync.odd for sync in history.syncs]


def poison(value: float) -> Any:
    """Return a change of one element."""

    def change(tensor: Any) -> Any:
        tensor = tensor.clone()
        tensor.view(-1)[5] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (poison(float("nan")), "that are NaN"),
        (poison(float("-inf")), "that are Inf"),
        (torch.zeros_like, "that are all zero"),
        (lambda tensor: tensor * 0.5, "times 0.5 those"),
        (lambda tensor: tensor * 4, "times 4 those"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_values_are_one_finding_each(change: Any, word: str, dtype: Any, tmp_path: Path) -> None:
    found, odd = train(tmp_path, sent=change, held=change, dtype=dtype)
    found.sort(key=lambda line: "held" in line or "holds" in line)
    assert [line.startswith(f"HIS029 step 6: 1 tensor sent with values {word}") for line in found] == [True, False]
    assert NAMES[1] in found[0]
    # what an engine stores bit for bit as it was sent is held against that
    assert re.match(r"HIS0(08|29) step 6: (the engine holds other values|1 tensor held in the engine)", found[1])
    assert NAMES[2] in found[1]
    sent, held = f"sent/{NAMES[1]}", f"held/0/{NAMES[2]}"
    lasting = {held} if "times" in word else {sent, held}
    assert [set(each) for each in odd] == [set()] * 6 + [{sent, held}] + [lasting] * 2
    assert odd[6][held] == odd[6][sent]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_quiet(dtype: Any, tmp_path: Path) -> None:
    assert train(tmp_path, dtype=dtype, steps=30) == ([], [{}] * 30)


def test_a_tensor_that_begins_at_zero_doubles_as_adam_moves_it(tmp_path: Path) -> None:
    """The matrix B of an adapter: each of its elements is a multiple of the learning rate at first."""
    found: list[str] = []
    watch = Watch(on=lambda finding: found.append(f"{finding.code} {finding.message}"))
    signs = torch.randn(8, 16).sign()
    for step in range(40):
        with watch(step=step) as sync:
            list(
                sync.sent(
                    iter([("lora_B.weight", 1e-4 * step * signs), ("bias", torch.zeros(8)), ("none", torch.zeros(0))])
                )
            )
    assert [line for line in found if "HIS029" in line] == []


def test_one_look_in_between_is_no_doubling_of_what_is_sent(tmp_path: Path) -> None:
    """It has to be steady for three looks before."""
    found, _ = train(tmp_path, sent=lambda tensor: tensor * 2, first=2, steps=3)
    assert found == []
