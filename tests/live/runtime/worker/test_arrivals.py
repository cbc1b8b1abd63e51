"""What reaches a model's load_weights is noted as it comes, and the load is none the wiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import arrivals
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import digest
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

WEIGHTS = {"a": torch.arange(6.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}


class Model(torch.nn.Module):
    """Keeps what it is called with; `most` tensors of a call are read."""

    def __init__(self, most: int = 9) -> None:
        super().__init__()
        self.most, self.calls = most, []

    def load_weights(self, weights: Any, strict: bool = True) -> set[str]:
        found = {}
        for name, tensor in weights:
            if len(found) == self.most:
                break
            found[name] = tensor.clone()
            tensor.zero_()  # the memory of a bucket is used again
        self.calls.append((type(weights), found, strict))
        return set(found)


def copies() -> Iterator[tuple[str, Any]]:
    return ((name, tensor.clone()) for name, tensor in WEIGHTS.items())


EXPECTED = [["a", "F32", [6], digest(WEIGHTS["a"])], ["b", "BF16", [2, 3], digest(WEIGHTS["b"])]]


@pytest.mark.parametrize("form", [list, tuple, iter])
def test_what_arrives_is_noted_before_it_is_used(form: Callable[[Any], Any]) -> None:
    model = Model()
    arrivals.record(model)
    assert model.load_weights(form(copies()), strict=False) == {"a", "b"}
    assert arrivals.read(3) == {"rank": 3, "entries": EXPECTED, "loaded": [], "seconds": 0.0}
    kind, found, strict = model.calls[0]
    assert kind is (form if form is not iter else kind)
    assert not strict
    assert all(torch.equal(found[name], tensor) for name, tensor in WEIGHTS.items())
    assert "load_weights" not in vars(model), "the model has its own method again"
    model.load_weights(copies())
    assert arrivals.read(3)["entries"] == []


def test_each_call_is_noted_and_a_stream_only_as_far_as_it_was_read() -> None:
    model = Model(most=1)
    arrivals.record(model)
    model.load_weights(copies())
    model.load_weights([("b", WEIGHTS["b"].clone())])
    assert [entry[0] for entry in arrivals.read(0)["entries"]] == ["a", "b", "b"]


def test_a_method_that_somebody_patched_stays() -> None:
    model, patched = Model(), []
    model.load_weights = patched.append
    arrivals.record(model)
    model.load_weights([])
    arrivals.read(0)
    model.load_weights([])
    assert patched == [[], []]
    arrivals.record(model)
    model.load_weights = (lambda inner: lambda weights: inner(weights))(model.load_weights)
    arrivals.read(0)
    model.load_weights([])
    assert patched == [[], [], []], "what was put around the recorder meanwhile still works"


def test_what_has_no_bytes_is_passed_on() -> None:
    model = Model()
    model.load_weights = lambda weights: [type(tensor) for _, tensor in weights]
    arrivals.record(model)
    odd = [("meta", torch.empty(2, device="meta")), ("lazy", object())]
    assert model.load_weights(iter(odd)) == model.load_weights(odd) == [torch.Tensor, object]
    assert arrivals.read(0)["entries"] == []


def test_a_new_record_forgets_the_old_one() -> None:
    old, new = Model(), Model()
    arrivals.record(old)
    old.load_weights(copies())
    arrivals.record(new)
    assert "load_weights" not in vars(old)
    new.load_weights(copies())
    assert len(arrivals.read(0)["entries"]) == 2


class Layer(torch.nn.Module):
    """Copies what it is sent into its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in WEIGHTS.values())

    def load_weights(self, weights: Any) -> None:
        with torch.no_grad():
            for name, tensor in weights:
                getattr(self, name).copy_(tensor)


@pytest.mark.parametrize("is_brief", [False, True])
@pytest.mark.parametrize("form", [list, iter])
def test_what_the_loader_leaves_is_noted_when_all_came(is_brief: bool, form: Callable[[Any], Any]) -> None:
    model = Layer()
    arrivals.record(model, list(WEIGHTS), is_brief)
    for name, tensor in copies():
        model.load_weights(form([(name, tensor)]))
    model.a.data.add_(1)  # what runs after the loader
    found = arrivals.read(0)
    assert found["entries"] == ([] if is_brief else EXPECTED)
    assert [entry[:2] for entry in found["loaded"]] == [[name, digest(tensor)] for name, tensor in WEIGHTS.items()]
    assert all(storage for _, _, storage in found["loaded"])


def test_what_comes_after_the_last_tensor_counts_too() -> None:
    model = Layer()
    arrivals.record(model, list(WEIGHTS))
    model.load_weights(copies())
    model.load_weights([("a", torch.ones(6))])
    assert arrivals.read(0)["loaded"][0][1] == digest(torch.ones(6))
    arrivals.record(model, [*WEIGHTS, "c"])
    model.load_weights(copies())
    assert arrivals.read(0)["loaded"] == [], "a tensor never came"
