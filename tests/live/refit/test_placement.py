"""Which transports there are between a trainer and an engine, and what is said where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.feasibility import check_transport
from ckptcheck.live.runtime.engines.base import EngineInfo
from ckptcheck.live.runtime.engines.transports import find_transport
from ckptcheck.live.runtime.trainers.base import TrainerInfo

ON_CPU = ("reload", "gloo", "load_weights")


class Holder:
    """A trainer of which only is known where it computes. It could lend."""

    def __init__(self, *gpus: str, sees: tuple[str, ...] = (), nccl: str = "") -> None:
        device = "cuda" if gpus else "cpu"
        facts = {"device": device, "gpus": ",".join(gpus), "sees": ",".join(sees or gpus), "nccl": nccl}
        self.info = TrainerInfo("megatron", "0.16.1", "bfloat16", "", "LlamaForCausalLM", facts)

    def nccl_unique_id(self) -> str:
        return ""

    def share_ipc(self, bucket_bytes: int, gpus: object) -> list[object]:
        return []

    def release_ipc(self) -> None: ...


class Packer:
    """A trainer that packs weights on their way."""

    info = Holder("A").info


def engine(*transports: str, name: str = "vllm", gpus: str = "", **more: str) -> Any:
    facts = {"device": "cuda" if gpus else "cpu", "gpus": gpus, **more}
    info = EngineInfo(name, "0.32.0", "bfloat16", 1, "LlamaForCausalLM", facts)
    return SimpleNamespace(info=info, transports=tuple(find_transport(name, transport) for transport in transports))


@pytest.mark.parametrize(
    ("trainer", "there", "transport"),
    [
        (Holder(), engine(*ON_CPU), "gloo"),
        (Holder(), engine("reload", "load_weights", gpus="A"), "reload"),
        (Holder("A"), engine("reload", "ipc", "load_weights", gpus="A"), "ipc"),
        (Holder("A", sees=("A", "B")), engine("reload", "ipc", "load_weights", gpus="A,B"), "ipc"),
        (Holder("A"), engine("reload", "nccl", "load_weights", gpus="B"), "nccl"),
        (Holder("A", "B"), engine("reload", "nccl", "load_weights", gpus="B"), "nccl"),
        (Holder("A"), engine("tensor", "nccl", name="sglang", gpus="B"), "nccl"),
        (Packer(), engine("reload", "ipc", "load_weights", gpus="A"), "reload"),
        (Holder("A", nccl="2.27.5"), engine("nccl", gpus="B", nccl="2.27.5", batch_invariant="False"), "nccl"),
        (Holder("A", nccl="2.27.5"), engine("nccl", gpus="B"), "nccl"),
        (Holder("A", nccl="2.27.5"), engine("ipc", gpus="A", nccl="2.29.7", batch_invariant="True"), "ipc"),
    ],
)
def test_what_can_be(trainer: Any, there: Any, transport: str) -> None:
    check_transport(trainer, there, transport)


@pytest.mark.parametrize(
    ("trainer", "there", "transport", "said", "hint"),
    [
        (
            Holder(), engine(*ON_CPU), "ipc",
            "ipc carries weights between GPUs only, and vllm computes on a CPU", "choose one of reload, gloo, load_weights",
        ),
        (
            Holder("A"), engine("reload", "load_weights", gpus="A"), "gloo",
            "gloo carries weights to a CPU only, and vllm computes on GPUs", "choose one of reload, nccl, ipc, load_weights",
        ),
        (
            Holder(), engine("reload", "ipc", "load_weights", gpus="A"), "ipc",
            "ipc carries weights between GPUs, and megatron computes on the CPU", "--set device=cuda, or --transport reload",
        ),
        (
            Holder("A"), engine("reload", "nccl", "load_weights", gpus="A"), "nccl",
            "NCCL refuses two ranks on one GPU, and megatron and vllm share A",
            "--transport ipc, or another GPU by --set engine-gpus",
        ),
        (
            Holder("A"), engine("tensor", "nccl", name="sglang", gpus="B,A"), "nccl",
            "NCCL refuses two ranks on one GPU, and megatron and sglang share A",
            "--transport tensor, or another GPU by --set engine-gpus",
        ),
        (
            Holder("A"), engine("reload", "ipc", "load_weights", gpus="B"), "ipc",
            "CUDA IPC opens the memory of one GPU, and megatron does not see B, where vllm is",
            "let both see it (--set trainer-gpus, --set engine-gpus), --transport nccl, or --transport reload",
        ),
        (
            Holder("A", nccl="2.27.5"), engine("reload", "nccl", gpus="B", nccl="2.29.7"), "nccl",
            "megatron has NCCL 2.27.5 and vllm has NCCL 2.29.7: a group of two versions can hang",
            "install the same torch on both sides, or --transport reload",
        ),
        (
            Holder("A"), engine("reload", "nccl", gpus="B", batch_invariant="True"), "nccl",
            "vllm is batch-invariant and pins how NCCL computes, which megatron does not: their group would hang",
            "unset VLLM_BATCH_INVARIANT, or --transport reload",
        ),
        (
            Packer(), engine("reload", "ipc", "load_weights", gpus="A"), "ipc",
            "ipc carries weights as the trainer holds them, and they are packed on their way", "--transport reload",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_what_can(trainer: Any, there: Any, transport: str, said: str, hint: str) -> None:
    with pytest.raises(CkptcheckError) as caught:
        check_transport(trainer, there, transport)
    assert (caught.value.message, caught.value.hint) == (said, hint)
