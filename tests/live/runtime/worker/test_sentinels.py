"""Sentinels survive casts, differ by tensor and element, and never equal trained weights; the walk finds every tensor."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import sentinels, tensors

torch = pytest.importorskip("torch")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OTHERS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
def test_sentinels_are_found_where_nothing_was_written(dtype: Any) -> None:
    tensor = torch.zeros(40, 30, dtype=dtype)
    number = sentinels.seed(0, "a.weight")
    sentinels.scramble(tensor, number)
    assert sentinels.find_sentinels(tensor, number) == (1200, [(0, 1200)])
    assert sentinels.find_sentinels(tensor, sentinels.seed(0, "b.weight"))[0] <= 1200 * 0.02
    assert sentinels.find_sentinels(tensor, sentinels.seed(1, "a.weight"))[0] <= 1200 * 0.02
    assert bool(torch.isfinite(tensor.to(torch.float64)).all())
    tensor[10:30] = torch.ones(20, 30).to(dtype)
    count, ranges = sentinels.find_sentinels(tensor, number)
    assert (count, ranges) == (600, [(0, 300), (900, 1200)])


def test_sentinels_survive_casts_between_floats() -> None:
    expected = sentinels.sentinel_values(7, 0, 5000, torch.float64, "cpu")
    for dtype in FLOATS:
        assert torch.equal(sentinels.sentinel_values(7, 0, 5000, dtype, "cpu").to(torch.float64), expected)
    assert float(expected.abs().min()) >= 4096
    assert float(expected.abs().max()) < 65504
    assert len(expected.unique()) > 1000


def test_sentinels_do_not_depend_on_memory_layout_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, slanted = torch.zeros(100, 7), torch.zeros(7, 100).t()
    sentinels.scramble(whole, 3)
    monkeypatch.setitem(sentinels.CHUNK, "cpu", 64)
    sentinels.scramble(slanted, 3)
    assert torch.equal(whole, slanted)
    assert sentinels.find_sentinels(slanted, 3)[0] == 700


def test_tensors_that_hold_no_sentinels_say_why() -> None:
    assert "empty" in sentinels.unmarkable_reason(torch.zeros(0))
    assert "bool" in sentinels.unmarkable_reason(torch.zeros(3, dtype=torch.bool))
    assert "meta" in sentinels.unmarkable_reason(torch.zeros(3, device="meta"))
    assert not sentinels.unmarkable_reason(torch.zeros(3))


def test_unwritten_memory_is_found_as_nan() -> None:
    tensor = torch.zeros(8, 8)
    tensor[2:4] = float("nan")
    assert sentinels.find_nans(tensor) == (16, [(16, 32)])
    assert sentinels.find_nans(torch.zeros(4, dtype=torch.int8)) == (0, [])


class Handler:
    def __init__(self) -> None:
        self.handler_tensor = torch.tensor(0xABC)


class Kernel:
    __module__ = "vllm.model_executor.made_up"

    def __init__(self, copy: Any) -> None:
        self.copy = copy
        self.itself = self


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.register_buffer("scale", torch.ones(()))
        self.absorbed = torch.full((2, 2), 3.0)
        self.alias = self.weight.data
        self.kv_cache = torch.zeros(100)
        self.parts = [torch.zeros(2), {"deep": torch.zeros(3)}]
        self.kernel = Kernel(torch.zeros(5))
        handler, packed = Handler(), torch.zeros(6)
        self.cpu_linear = lambda x: (handler, packed, x)


def test_the_walk_yields_every_tensor_of_a_model() -> None:
    model = torch.nn.ModuleDict({"one": Layer()})
    model["two"] = model["one"]
    found = {name: (kind, why) for name, kind, _, why in tensors.walk(model)}
    derived = ("absorbed", "parts.0", "parts.1.deep", "kernel.copy", "cpu_linear.packed")
    for layer in ("one", "two"):
        assert found.pop(f"{layer}.weight") == ("parameter", "")
        assert found.pop(f"{layer}.scale") == ("buffer", "")
        assert found.pop(f"{layer}.cpu_linear.handler") == ("derived", "packed for oneDNN")
        for name in derived:
            assert found.pop(f"{layer}.{name}") == ("derived", "")
    assert not found


def test_a_storage_id_shows_sharing_and_replacement() -> None:
    layer = Layer()
    tied = torch.nn.Linear(4, 4)
    tied.weight = layer.weight
    assert tensors.storage_id(tied.weight) == tensors.storage_id(layer.weight)
    assert tensors.storage_id(layer.weight[1:]) != tensors.storage_id(layer.weight)
    assert tensors.storage_id(torch.zeros(0)) == ""
    assert tensors.storage_id(Handler()) == "abc"


def test_an_emptied_parameter_says_why() -> None:
    layer = Layer()
    layer.weight = torch.nn.Parameter(torch.empty(0))
    said = {name: why for name, kind, _, why in tensors.walk(layer) if kind == "parameter"}
    assert said == {"weight": "it is empty: the engine computes with a packed copy"}
