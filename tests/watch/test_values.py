"""NaN, Inf, zeros and powers of two in what is sent and held are named, and break no record; training as such is quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import Watch, module, syncing
from ckptcheck.watch.syncing import CAST_BYTES

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
    """Sync for some steps, with one tensor changed from a step on. Return the findings, and the odd values of what was sent."""
    torch.manual_seed(0)
    found: list[str] = []
    engine, record = Engine(dtype), tmp_path / "syncs.jsonl"
    watch = Watch(module(engine), record=record, on=lambda finding: found.append(f"{finding.code} {finding.message}"))
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
    ("change", "word", "what"),
    [
        (poison(float("nan")), "NaN", "that are NaN"),
        (poison(float("-inf")), "infinite", "that are infinite"),
        (torch.zeros_like, "all zero", "that are all zero"),
        (lambda tensor: tensor * 0.5, "multiplied by 0.5", "multiplied by 0.5 against the sync before"),
        (lambda tensor: tensor * 4, "multiplied by 4", "multiplied by 4 against the sync before"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "cast_bytes"), [(torch.float32, CAST_BYTES), (torch.bfloat16, CAST_BYTES), (torch.bfloat16, 0)]
)
def test_odd_values_are_one_finding_each(
    change: Any, word: str, what: str, dtype: Any, cast_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cast_bytes: 0 for a tensor that is too large for a second digest, after the engine's cast."""
    monkeypatch.setattr(syncing, "CAST_BYTES", cast_bytes)
    found, odd = train(tmp_path, sent=change, held=change, dtype=dtype)
    assert len(found) == 2
    assert f"HIS029 step 6: 1 tensor sent with values {what}: {NAMES[1]}" in found
    unequal = "HIS008 step 6: the engine holds other values than the trainer sent in 1 tensor"
    assert any(line.startswith(f"{unequal}; {NAMES[2]}: {word}") for line in found)
    assert odd == [{}] * 6 + [{NAMES[1]: word}] + [{} if word.startswith("multiplied") else {NAMES[1]: word}] * 2


def test_nan_in_a_fused_tensor_is_held_against_its_sources() -> None:
    found: list[str] = []
    engine = torch.nn.ModuleDict({"qkv_proj": torch.nn.Linear(8, 24, bias=False)})
    watch = Watch(module(engine), on=lambda finding: found.append(f"{finding.code} {finding.message}"))
    held = engine.get_parameter("qkv_proj.weight")
    weights = {f"{each}_proj.weight": torch.randn(8, 8) for each in "qkv"}
    for step in range(3):
        for value in weights.values():
            value += 0.1
        with watch(step=step) as sync:
            held.data = torch.cat([value for _, value in sync.sent(iter(weights.items()))])
            held.data[0, 0] = float("nan") if step == 1 else 0.5
    assert found == [
        "HIS008 step 1: the engine holds other values than the trainer sent in 1 tensor; qkv_proj.weight: NaN"
    ]
    weights["q_proj.weight"][0, 0] = float("nan")
    with watch(step=3) as sync:
        held.data = torch.cat([value for _, value in sync.sent(iter(weights.items()))])
    assert found[1:] == ["HIS029 step 3: 1 tensor sent with values that are NaN: q_proj.weight"]


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
