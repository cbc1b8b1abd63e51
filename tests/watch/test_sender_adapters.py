"""The adapters for checkpoint-engine, prime-rl, SkyRL, AReaL, OpenRLHF and PipelineRL, around stand-ins of their interfaces.

Each stand-in has the methods and the arguments of the source that its adapter names, and syncs in the same order of calls.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.watch import SyncWarning, Watch, adapters
from tests.watch.toy import NAMES, Engine, Trainer

Made = tuple[Any, Callable[[], None]]


class ParameterServer:
    """As checkpoint-engine 0.4.2 has it: tensors are registered, then sent by name."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.registered, self.ranks = engine, dict[str, Any](), 1

    def register_checkpoint(
        self,
        checkpoint_name: str,
        *,
        files: Any = None,
        named_tensors: Any = None,
        use_shared_memory_pool: bool = False,
    ) -> None:
        self.registered[checkpoint_name] = dict(named_tensors or {})

    def get_metas(self) -> dict[int, Any]:
        return dict.fromkeys(range(self.ranks))

    def update(self, checkpoint_name: str, req_func: Any, *, timeout: Any = None, ranks: Any = None) -> None:
        self.engine.update(self.registered[checkpoint_name].items())


def make_checkpoint_engine(trainer: Trainer, engine: Engine) -> Made:
    server = ParameterServer(engine)

    def sync() -> None:
        server.register_checkpoint("latest", named_tensors=dict(trainer.export()))
        server.update("latest", print)

    return server, sync


def broadcast_state_dict(state_dict: dict[str, Any], communicator: Any) -> None:
    """As prime-rl's, which its sender finds as a name of its module."""
    communicator.update(state_dict.items())


class NCCLWeightBroadcast:
    """As prime-rl 559b44772 has it: layer by layer, through a function of its module."""

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.trainer, self.engine = trainer, engine

    def broadcast_weights(self, model: Any, step: int) -> None:
        weights = dict(self.trainer.export())
        for part in (NAMES[:2], NAMES[2:]):
            broadcast_state_dict({name: weights[name] for name in part}, self.engine)


def make_prime_rl(trainer: Trainer, engine: Engine) -> Made:
    sender = NCCLWeightBroadcast(trainer, engine)
    return sender, lambda: sender.broadcast_weights(None, trainer.step_number)


@dataclass
class WeightChunk:
    """As SkyRL's."""

    names: list[str]
    tensors: list[Any]


class WeightTransferSender:
    """As SkyRL a9564572e has it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def send_chunks(self, chunks: Iterable[WeightChunk], weight_metadata: Any = None, **kwargs: Any) -> None:
        for chunk in chunks:
            self.engine.update(zip(chunk.names, chunk.tensors, strict=True))


def make_skyrl(trainer: Trainer, engine: Engine) -> Made:
    sender = WeightTransferSender(engine)

    def sync() -> None:
        chunks = (WeightChunk([name], [tensor]) for name, tensor in trainer.export())
        asyncio.run(sender.send_chunks(chunks, weight_metadata={}, reset_prefix_cache=True))

    return sender, sync


class FSDPEngine:
    """As AReaL 4aef98d8d has it: the last bucket goes by the method that calls the first."""

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.trainer, self.engine = trainer, engine

    def update_weights(self, meta: Any) -> None:
        if meta.type == "disk":
            self.engine.update(self.trainer.export())
            return
        weights = list(self.trainer.export())
        self._update_bucket_weights_from_distributed_async(meta, weights[:2], stream=None)
        self._update_bucket_weights_from_distributed(meta, weights[2:])

    def _update_bucket_weights_from_distributed_async(self, meta: Any, named_tensors: Any, stream: Any = None) -> None:
        self.engine.update(named_tensors)

    def _update_bucket_weights_from_distributed(self, meta: Any, named_tensors: Any) -> None:
        self._update_bucket_weights_from_distributed_async(meta, named_tensors)


def make_areal(trainer: Trainer, engine: Engine) -> Made:
    owner = FSDPEngine(trainer, engine)
    return owner, lambda: owner.update_weights(SimpleNamespace(type="xccl", version=trainer.step_number))


class Group:
    """A communicator: what is broadcast reaches the engine under the names that were announced."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.names = engine, list[str]()
        self.rank = 0

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        self.engine.update([(self.names.pop(0), tensor)])


class Parameter:
    """A parameter of a model, as far as a sync looks at it."""

    requires_grad = True

    def __init__(self, data: Any) -> None:
        self.data = data


class ActorPPOTrainer:
    """As OpenRLHF 3c3be6234 has it: parameter by parameter, by functions of its own."""

    def __init__(self, trainer: Trainer, engine: Engine, *, stage: int = 0, ipc: bool = False) -> None:
        self.use_cuda_ipc = ipc
        self._model_update_group = Group(engine)
        self.strategy = SimpleNamespace(
            args=SimpleNamespace(ds=SimpleNamespace(zero_stage=stage, tensor_parallel_size=1))
        )
        self.engine = engine

        def named_parameters() -> Any:
            return [(name, Parameter(values)) for name, values in trainer.export()]

        self.actor = SimpleNamespace(
            is_vlm=False, model=SimpleNamespace(module=SimpleNamespace(named_parameters=named_parameters))
        )

    def broadcast_to_vllm(self) -> None:
        for name, parameter in self.actor.model.module.named_parameters():
            if self.use_cuda_ipc:
                self.engine.update([(name, parameter.data)])
            else:
                assert self._model_update_group.rank == 0, "everything else is the group's own"
                self._model_update_group.names.append(name)
                self._model_update_group.broadcast(parameter.data, src=0, stream=None)


def make_openrlhf(trainer: Trainer, engine: Engine) -> Made:
    owner = ActorPPOTrainer(trainer, engine)
    return owner, lambda: owner.broadcast_to_vllm()


def make_openrlhf_by_ipc(trainer: Trainer, engine: Engine) -> Made:
    owner = ActorPPOTrainer(trainer, engine, ipc=True)
    return owner, lambda: owner.broadcast_to_vllm()


class WeightUpdateManager:
    """As PipelineRL 58d3934 has it: the names in a request, then the tensors by a group."""

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.trainer = trainer
        self.actor_update_group = Group(engine)

    def request_weight_updates(self, message: Any) -> list[Any]:
        self.actor_update_group.names[:] = [info.name for info in message.parameters_info]
        return []

    def send_weight_update(self, version: int) -> None:
        weights = dict(self.trainer.export())
        self.request_weight_updates(SimpleNamespace(parameters_info=[SimpleNamespace(name=name) for name in weights]))
        for tensor in weights.values():
            self.actor_update_group.broadcast(tensor, src=0, stream=None)


def make_pipelinerl(trainer: Trainer, engine: Engine) -> Made:
    manager = WeightUpdateManager(trainer, engine)
    return manager, lambda: manager.send_weight_update(trainer.step_number)


CASES: dict[str, tuple[Callable[..., Any], Callable[[Trainer, Engine], Made]]] = {
    "checkpoint-engine": (adapters.checkpoint_engine, make_checkpoint_engine),
    "prime-rl": (adapters.prime_rl, make_prime_rl),
    "SkyRL": (adapters.skyrl, make_skyrl),
    "AReaL": (adapters.areal, make_areal),
    "OpenRLHF": (adapters.openrlhf, make_openrlhf),
    "OpenRLHF, colocated": (adapters.openrlhf, make_openrlhf_by_ipc),
    "PipelineRL": (adapters.pipelinerl, make_pipelinerl),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sound_job_is_seen_and_quiet_and_a_lost_tensor_is_named(case: str) -> None:
    put_in, make = CASES[case]
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    owner, sync = make(trainer, engine)
    assert put_in(owner, watch) is owner
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            sync()
            trainer.step()
    assert all(set(each.sent) == set(NAMES) and each.ok for each in watch.last)
    assert [each.step for each in watch.last] in ([0, 1, 2, 3], [0, 0, 1, 2])
    engine.deaf = (NAMES[3],)
    with pytest.warns(SyncWarning, match=f"HIS001 step .* did not change .*{NAMES[3]}"):
        sync()


@pytest.mark.filterwarnings("ignore::ckptcheck.watch.SyncWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_sync_that_fails_is_recorded_and_its_own_error_goes_on(case: str) -> None:
    put_in, make = CASES[case]
    trainer, engine = Trainer(), Engine()
    watch = Watch(None)
    owner, sync = make(trainer, engine)
    put_in(owner, watch)

    def fail(weights: Any) -> None:
        raise RuntimeError("a worker died")

    engine.update = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a worker died"):
        sync()
    assert (watch.last[-1].ok, watch.last[-1].message) == (False, "RuntimeError: a worker died")


@pytest.mark.parametrize("case", CASES)
def test_a_watch_that_is_off_changes_nothing(case: str) -> None:
    put_in, make = CASES[case]
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, enabled=False)
    owner, sync = make(trainer, engine)
    put_in(owner, watch)
    sync()
    assert set(engine.weights) == set(NAMES)
    assert not watch.last


class OtherInterface:
    """Has the methods of every framework, with other arguments."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def broadcast_weights(self, everything: Any) -> None:
        self.engine.update(everything)

    send_chunks = update_weights = send_weight_update = register_checkpoint = update = broadcast_weights


@pytest.mark.parametrize(
    ("put_in", "sentence"),
    [
        (adapters.prime_rl, "prime-rl of 2026-08-21 (559b44772): broadcast_weights takes no model and step here"),
        (adapters.skyrl, "SkyRL of 2026-08-21 (a9564572e): send_chunks takes no chunks and weight_metadata here"),
        (adapters.areal, "AReaL of 2026-05-21 (4aef98d8d): update_weights takes no meta here"),
        (adapters.pipelinerl, "PipelineRL of 2026-06-19 (58d3934): send_weight_update takes no version here"),
        (
            adapters.checkpoint_engine,
            "checkpoint-engine 0.4.2: register_checkpoint takes no checkpoint_name, files and named_tensors here",
        ),
    ],
)
def test_another_interface_is_said_once_in_one_sentence(put_in: Callable[..., Any], sentence: str) -> None:
    with pytest.warns(SyncWarning) as caught:
        put_in(OtherInterface(Engine()), Watch())
    assert [str(warning.message) for warning in caught] == [
        f"ckptcheck.watch is written for {sentence}; it does not see what is sent"
    ]


@pytest.mark.parametrize(
    "put_in", [put_in for name in adapters.__all__ if name != "nemo_rl" for put_in in [getattr(adapters, name)]]
)
def test_an_object_without_the_methods_is_left_as_it_is(put_in: Callable[..., Any]) -> None:
    owner = SimpleNamespace()
    with pytest.warns(SyncWarning, match=r"ckptcheck.watch is written for .*: \w+ has no \w+ here"):
        assert put_in(owner, Watch()) is owner
    assert vars(owner) == {}


def test_what_the_watch_cannot_see_is_said_and_never_recorded_as_whole() -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    areal = adapters.areal(FSDPEngine(trainer, engine), watch)
    with pytest.warns(SyncWarning, match="AReaL writes the weights to files"):
        areal.update_weights(SimpleNamespace(type="disk", version=1))
    server = adapters.checkpoint_engine(ParameterServer(engine), watch)
    server.register_checkpoint("latest", named_tensors=dict(trainer.export()))
    server.ranks = 2
    with pytest.warns(SyncWarning, match="other ranks of checkpoint-engine registered shares of their own"):
        server.update("latest", print)
    sharded = adapters.openrlhf(ActorPPOTrainer(trainer, engine, stage=3, ipc=True), watch)
    with pytest.warns(SyncWarning, match="OpenRLHF gathers sharded weights"):
        sharded.broadcast_to_vllm()
    assert [(sync.sent, len(sync.held)) for sync in watch.last] == [({}, 6)] * 3
