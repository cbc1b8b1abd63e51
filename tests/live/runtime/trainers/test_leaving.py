"""How weights leave a trainer's GPU: broadcasts in the order of the plan, and memory that others may open."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import communicator, ipc

torch = pytest.importorskip("torch")

GROUP = {"kind": "nccl-id", "world_size": 3, "unique_id": "YWJj"}


class Rank0:
    """Stands in for torch.cuda.nccl: writes down what it is asked."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def init_rank(self, number: int, unique: bytes, rank: int) -> str:
        self.said.append(("init", number, unique, rank))
        return "member"

    def all_reduce(self, tensors: list[Any], comms: list[str]) -> None:
        self.said.append(("all_reduce", tensors[0].tolist(), comms))

    def broadcast(self, tensors: list[Any], comms: list[str]) -> None:
        assert len(tensors) == 1
        assert tensors[0].is_contiguous()
        self.said.append((str(tensors[0].dtype), tensors[0].tolist(), comms))


@pytest.fixture
def rank0(monkeypatch: pytest.MonkeyPatch) -> Rank0:
    """NCCL without a GPU: its warming up is on the CPU, and there is no stream to wait for."""
    import torch.cuda

    made, zeros = Rank0(), torch.zeros
    for name in ("init_rank", "all_reduce", "broadcast"):
        monkeypatch.setattr(torch.cuda.nccl, name, getattr(made, name))
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))

    class Stream:
        def synchronize(self) -> None:
            made.said.append("synchronized")

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return made


def test_vllm_is_greeted_and_gets_every_weight_by_itself_in_order(rank0: Rank0) -> None:
    weights = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(), "b": torch.tensor([5.0], dtype=torch.bfloat16)}
    communicator.send_weights(GROUP, iter(weights.items()))
    assert rank0.said == [
        ("init", 3, b"abc", 0),
        ("all_reduce", [0.0], ["member"]),
        ("torch.float32", [[1.0, 3.0], [2.0, 4.0]], ["member"]),
        ("torch.bfloat16", [5.0], ["member"]),
        "synchronized",
    ]


def test_every_kind_of_group_gets_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    @contextlib.contextmanager
    def joined(group: dict[str, Any]) -> Iterator[Any]:
        yield lambda tensor: sent.append(tensor.tolist())
        sent.append("left")

    monkeypatch.setattr(communicator, "JOINS", dict.fromkeys(communicator.JOINS, joined))
    for kind in ("gloo", "nccl", "nccl-id"):
        communicator.send_weights({**GROUP, "kind": kind}, iter([("a", torch.ones(2)), ("b", torch.zeros(0))]))
    assert sent == [[1.0, 1.0], [], "left"] * 3
    with pytest.raises(ValueError, match="weights are not broadcast over ipc; there are gloo, nccl, nccl-id"):
        communicator.send_weights({**GROUP, "kind": "ipc"}, iter(()))


def handle(weight: Any) -> tuple[Any, ...]:
    """What torch 2.11 to 2.13 says of a CUDA tensor (multiprocessing/reductions.py, `reduce_tensor`)."""
    place = (3, b"\x00handle\xff", weight.nbytes, 512)
    tensor = (torch.Tensor, weight.size(), weight.stride(), 7, torch.storage.TypedStorage, weight.dtype)
    return (*tensor, *place, False, b"/counter", 4, b"\x01event", True)


def test_a_handle_is_the_same_after_json() -> None:
    said = handle(torch.ones(2, 3, dtype=torch.bfloat16))
    heard = ipc.decode_handle(json.loads(json.dumps(ipc.encode_handle(said))))
    assert heard == said
    assert [type(each) for each in heard if not isinstance(each, tuple)] == [
        type(each) for each in said if not isinstance(each, tuple)
    ]


@pytest.mark.parametrize(
    "said",
    [{"class": "Popen"}, {"dtype": "nn"}, {"dtype": "load"}, {"bytes": "a", "dtype": "int8"}, {"bytes": "é"}, 1.5, "x"],
)
def test_nothing_else_is_understood(said: Any) -> None:
    with pytest.raises(ValueError, match=r"handle|ASCII|base64"):
        ipc.decode_handle(said)


def test_what_is_no_part_of_a_handle_is_not_said() -> None:
    with pytest.raises(TypeError, match="is not part of a known CUDA IPC handle"):
        ipc.encode_handle((1, torch.nn.Linear))


class OnGpu:
    """A tensor of a GPU, as far as lending goes."""

    def __init__(self, values: Any, device: str = "cuda:0") -> None:
        self.values, self.device = values, device

    def detach(self) -> OnGpu:
        return self

    def to(self, device: str) -> OnGpu:
        return self if device == self.device else OnGpu(self.values, device)

    def contiguous(self) -> OnGpu:
        return self


def test_a_weight_is_lent_where_it_lies_and_copied_to_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "visible_gpus", lambda: {"A": 0, "B": 1, "C": 2})
    lent, weight, lying = ipc.IpcShare(["C", "A"]), OnGpu(torch.ones(2)), []

    def reduce(tensor: OnGpu) -> tuple[Any, tuple[Any, ...]]:
        lying.append(tensor)
        return None, handle(tensor.values)

    said = lent.share(weight, reduce)
    assert list(said) == ["C", "A"]
    assert ipc.decode_handle(said["A"]) == handle(weight.values)
    assert [each.device for each in lying] == ["cuda:2", "cuda:0"]
    assert lying[1] is weight
    assert lent._tensors == lying  # a handle keeps nothing alive


def test_a_gpu_that_is_not_seen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "visible_gpus", lambda: {"A": 0})
    with pytest.raises(LookupError, match="the engine is on GPU B, which this trainer does not see"):
        ipc.IpcShare(["A", "B"])


def test_ranks_get_a_gpu_each_or_say_how_many_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptcheck.live.runtime.worker.ckptcheck_worker import megatron_device

    number = 0
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it may start the driver before the fork"))
    assert not megatron_device.should_use_gpus("auto", 2)
    with pytest.raises(RuntimeError, match="sees no GPU"):
        megatron_device.should_use_gpus("cuda", 1)
    number = 1
    assert megatron_device.should_use_gpus("auto", 1)
    assert not megatron_device.should_use_gpus("cpu", 2)
    with pytest.raises(RuntimeError, match=r"2 ranks need 2 GPUs, .* and there is 1: use fewer, or --set device=cpu"):
        megatron_device.should_use_gpus("auto", 2)
    number = 3
    assert megatron_device.should_use_gpus("cuda", 3)
