"""The adapters for slime, verl, NeMo-RL and TRL, around stand-ins of the interfaces that they were written against."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.runner import run_rules
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncError, SyncWarning, Watch, adapters
from tests.watch.toy import NAMES, Engine, Trainer

HISTORY = [rule for rule in rule_loader.load_rules() if rule.on == "history"]


class SlimeUpdater:
    """As slime 04b6c8d has it: UpdateWeightFromTensor, with HfWeightIteratorDirect's method.

    Where there is a plan, its iterator is given the buckets without experts, and experts go by `_update_expert_weights`.
    """

    class Iterator:
        def __init__(self, trainer: Trainer) -> None:
            self.trainer = trainer

        def get_hf_weight_chunks(
            self, megatron_local_weights: Any, param_info_buckets: Any = None
        ) -> Iterator[list[Any]]:
            pairs = [each for each in self.trainer.export() if each[0] in param_info_buckets]
            yield pairs[:4]
            yield pairs[4:]

    def __init__(self, trainer: Trainer, engine: Engine) -> None:
        self.trainer, self.engine, self.weight_version = trainer, engine, 0
        self._hf_weight_iterator = self.Iterator(trainer)
        self._expert_transfer_plan: list[str] = []

    def update_weights(self) -> None:
        self.weight_version += 1
        buckets = [name for name in NAMES if name not in self._expert_transfer_plan]
        for chunk in self._hf_weight_iterator.get_hf_weight_chunks({}, param_info_buckets=buckets):
            self.engine.update(chunk)
            chunk.clear()  # slime does, as soon as a bucket was taken
        if self._expert_transfer_plan:
            self.engine.update((name, self.trainer.weights[name]) for name in self._expert_transfer_plan)


def test_slime() -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    updater = adapters.slime(SlimeUpdater(trainer, engine), watch)
    for _ in range(3):
        updater.update_weights()
        trainer.step()
    assert [sync.step for sync in watch.last] == [1, 2, 3]
    assert all(set(sync.sent) == set(NAMES) for sync in watch.last)
    engine.deaf = (NAMES[0],)
    with pytest.raises(SyncError, match="HIS001 step 4"):
        updater.update_weights()
    assert updater.weight_version == 4


def test_slime_that_sends_experts_past_its_iterator_is_seen_from_the_engine_only() -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    updater = adapters.slime(SlimeUpdater(trainer, engine), watch)
    updater._expert_transfer_plan = NAMES[4:]  # it is made when the engines connect, after the adapter came
    with pytest.warns(SyncWarning, match="does not see what is sent: slime sends experts from rank to rank"):
        updater.update_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step()
        updater.update_weights()
    assert [(sync.sent, len(sync.held)) for sync in watch.last] == [({}, 6), ({}, 6)], (
        "no part of it, as if it were all"
    )
    updater._expert_transfer_plan = []  # other engines connected
    trainer.step()
    updater.update_weights()
    assert set(watch.last[-1].sent) == set(NAMES)


def test_slime_that_broadcasts_shows_its_buckets_to_a_hook() -> None:
    class Distributed:
        """As slime 624b824a8 has it: UpdateWeightFromDistributed, with its hook."""

        weight_version = 0
        shown = 0

        def _on_chunk(self, hf_chunk: list[Any]) -> None:
            self.shown += 1

        def update_weights(self) -> None:
            self.weight_version += 1
            pairs = list(trainer.export())
            for chunk in (pairs[:4], pairs[4:]):
                self._on_chunk(chunk)
                engine.update(chunk)

    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    updater = adapters.slime(Distributed(), watch)
    for _ in range(2):
        updater.update_weights()
        trainer.step()
    assert [set(sync.sent) for sync in watch.last] == [set(NAMES)] * 2
    assert updater.shown == 4
    engine.deaf = (NAMES[0],)
    with pytest.raises(SyncError, match="HIS001 step 3"):
        updater.update_weights()


def test_slime_that_broadcasts_is_seen_from_the_engine_only() -> None:
    class Distributed:
        weight_version = 0

        def update_weights(self) -> None:
            self.weight_version += 1
            engine.update(trainer.export())

    trainer, engine = Trainer(), Engine()
    watch = Watch(engine)
    updater = adapters.slime(Distributed(), watch)
    updater.update_weights()
    with pytest.warns(SyncWarning, match="HIS002 step 2: all 6 tensors of the engine are as at step 1"):
        updater.update_weights()


def no_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a coroutine function as torch.no_grad does: what comes out returns a coroutine, and is no coroutine function."""

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapped


async def ensured(weights: Any) -> AsyncIterator[tuple[str, Any]]:
    """As verl's ensure_async_iterator, through which its rollouts take weights."""
    if hasattr(weights, "__aiter__"):
        async for each in weights:
            yield each
    else:
        for each in weights:
            yield each


class VerlRollout:
    """As verl has it: BaseRollout.update_weights."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def update_weights(self, weights: Any, **kwargs: Any) -> str:
        self.engine.update([each async for each in ensured(weights)])
        self.kwargs = kwargs
        return "done"


class VerlServerAdapter(VerlRollout):
    """As verl's vLLM rollout, whose method is wrapped in torch.no_grad."""

    update_weights = no_grad(VerlRollout.update_weights)


class VerlCheckpointEngine:
    """As verl 11eb3d0 has it: CheckpointEngine.send_weights, which takes weights as they come."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def send_weights(self, weights: Any) -> str:
        self.engine.update(weights)
        return "done"


class VerlNcclEngine(VerlCheckpointEngine):
    """As verl's NCCL engine: wrapped in torch.no_grad, and given the step."""

    @no_grad
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> str:
        return await super().send_weights(each for each in weights)


@pytest.mark.parametrize("made", [VerlRollout, VerlServerAdapter, VerlCheckpointEngine, VerlNcclEngine])
def test_verl(made: Any) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    name = "update_weights" if hasattr(made, "update_weights") else "send_weights"
    side = adapters.verl(made(engine), watch)
    send = getattr(side, name)
    assert inspect.iscoroutinefunction(send) == inspect.iscoroutinefunction(getattr(made, name))
    more = {} if made is VerlCheckpointEngine else {"global_steps": 7}
    assert asyncio.run(send(trainer.export(), **more)) == "done"
    trainer.step()
    engine.deaf = (NAMES[3],)
    with pytest.raises(SyncError, match="HIS001"):
        asyncio.run(send(weights=trainer.export(), **{key: value + 1 for key, value in more.items()}))
    assert [sync.step for sync in watch.last] == ([7, 8] if more else [0, 0])
    assert set(watch.last[0].sent) == set(NAMES)


def test_verl_whose_weights_come_asynchronously() -> None:
    async def receive_weights() -> AsyncIterator[tuple[str, Any]]:
        """As verl's NCCL engine gives them to the rollout."""
        for each in trainer.export():
            await asyncio.sleep(0)
            yield each

    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    rollout = adapters.verl(VerlRollout(engine), watch)
    asyncio.run(rollout.update_weights(receive_weights(), global_steps=1))
    assert set(engine.weights) == set(NAMES)
    assert watch.last[0].held == {f"0/{name}": value for name, value in watch.last[0].sent.items()}


def test_verl_whose_engine_only_keeps_the_weights_goes_on_and_is_told() -> None:
    class Colocated:
        """As verl's engine "naive": no coroutine, and nothing is taken before receive_weights."""

        def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
            self.weights = weights

        def receive_weights(self) -> Iterator[Any]:
            yield from self.weights

    trainer = Trainer()
    watch = Watch()
    naive = adapters.verl(Colocated(), watch)
    with pytest.warns(SyncWarning, match="ended before the engine read the weights; watch the call that reads them"):
        assert naive.send_weights(trainer.export()) is None
    assert [name for name, _ in naive.receive_weights()] == NAMES
    assert watch.last[0].sent == {}


def test_verl_that_sends_deltas_or_a_whole_engine_goes_on() -> None:
    class Flush:
        """Of a delta engine: a payload, no name and tensor."""

    class Sharded:
        async def send_weights(self, weights: Any, global_steps: int | None = None) -> Any:
            return weights

    class Rollout:
        async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any) -> list[Any]:
            return [each async for each in ensured(weights)]

    trainer, flushes, watch = Trainer(), [Flush(), Flush()], Watch()
    with pytest.warns(SyncWarning, match="Trainer is no series of names and tensors"):
        assert asyncio.run(adapters.verl(Sharded(), watch).send_weights(trainer, global_steps=1)) is trainer
    rollout = adapters.verl(Rollout(), watch)
    with pytest.warns(SyncWarning, match="it comes as Flush"):
        assert asyncio.run(rollout.update_weights(iter(flushes), wire_format="delta_flush")) == flushes


def test_verl_that_fails_is_recorded_and_its_own_error_goes_on() -> None:
    class Rollout:
        async def update_weights(self, weights: Any, **kwargs: Any) -> None:
            raise OSError("the link is down")

    watch = Watch(on="raise")
    with pytest.warns(SyncWarning, match="HIS009"), pytest.raises(OSError, match="the link is down"):
        asyncio.run(adapters.verl(Rollout(), watch).update_weights(iter(())))
    assert watch.last[0].ok is False


def stream_weights_via_ipc_zmq_impl(
    params_generator: Any, buffer_size_bytes: int, zmq_socket: Engine, rank: int, worker_name: str
) -> None:
    """As NeMo-RL has it, in models/policy/utils.py; the socket is the toy here."""
    zmq_socket.update(params_generator)


def packed_broadcast_producer(iterator: Any, group: Engine, src: int, post_iter_func: Any) -> None:
    """As NeMo-RL has it, in utils/packed_tensor.py: it asks for one after the other, and only the tensor goes on its way."""
    taken = []
    while True:
        try:
            each = next(iterator)
        except StopIteration:
            break
        taken.append((each[0], post_iter_func(each)))
    group.update(taken)


def streamed(send: Any, trainer: Trainer, engine: Engine) -> None:
    """As NeMo-RL's policy workers call it, colocated."""
    send(params_generator=trainer.export(), buffer_size_bytes=1, zmq_socket=engine, rank=0, worker_name="worker")


def broadcast(send: Any, trainer: Trainer, engine: Engine) -> None:
    """As NeMo-RL's policy workers call it, not colocated."""
    send(iterator=trainer.export(), group=engine, src=0, post_iter_func=lambda each: each[1])


@pytest.mark.parametrize(
    ("function", "call"), [(stream_weights_via_ipc_zmq_impl, streamed), (packed_broadcast_producer, broadcast)]
)
def test_nemo_rl(function: Any, call: Any, tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    told: list[Finding] = []
    watch = Watch(record=tmp_path / "syncs.jsonl", on=told.append)
    send = adapters.nemo_rl(function, watch)
    call(send, trainer, engine)
    for _ in range(3):  # a job that resumes syncs twice before it trains: nothing is said of that
        call(send, trainer, engine)
        trainer.step()
    assert told == []
    assert set(engine.weights) == set(NAMES)
    assert [(sync.step, set(sync.sent)) for sync in watch.last] == [(step, set(NAMES)) for step in (0, 0, 1, 2)]
    with pytest.raises(AttributeError):
        call(send, None, engine)


def test_nemo_rl_that_sends_the_same_for_ever_is_found(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(record=tmp_path / "syncs.jsonl", on=lambda finding: None)
    send = adapters.nemo_rl(packed_broadcast_producer, watch)
    for _ in range(8):
        broadcast(send, trainer, engine)
    report = run_rules(open_history(tmp_path / "syncs.jsonl"), HISTORY)
    assert [f"{each.code} {each.message}" for each in report.findings] == [
        "HIS002 step 1: the trainer sent all 6 tensors as at step 0; it shows at 6 syncs, last at step 6"
    ]


def test_nemo_rl_sends_positionally_and_on_other_ranks(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(record=tmp_path / "syncs.jsonl", enabled=False)
    send = adapters.nemo_rl(packed_broadcast_producer, watch)
    send(trainer.export(), engine, 0, lambda each: each[1])
    assert set(engine.weights) == set(NAMES)
    assert not (tmp_path / "syncs.jsonl").exists()
    watch = Watch()
    adapters.nemo_rl(packed_broadcast_producer, watch)(trainer.export(), engine, 0, lambda each: each[1])
    assert set(watch.last[0].sent) == set(NAMES)


def test_nemo_rl_with_other_arguments_is_said_once_and_goes_on() -> None:
    def packed_broadcast_producer(tensors: Any, group: Engine) -> None:
        group.update(tensors)

    trainer, engine = Trainer(), Engine()
    with pytest.warns(
        SyncWarning, match=r"NeMo-RL of 2026-08-22 \(7ea279abf\): packed_broadcast_producer takes no iterator"
    ):
        send = adapters.nemo_rl(packed_broadcast_producer, watch := Watch())
    with pytest.warns(SyncWarning, match="NeMo-RL has another interface here"):
        send(trainer.export(), engine)
    assert set(engine.weights) == set(NAMES)
    assert watch.last[0].sent == {}


class TrlGeneration:
    """As TRL 1.16.0 has it: VLLMGeneration, which walks the parameters twice at the first sync with a server."""

    def __init__(self, trainer: Trainer, engine: Engine, mode: str) -> None:
        self.trainer, self.engine, self.mode = trainer, engine, mode
        self._weight_metadata: list[Any] | None = None
        self.walks = 0

    def _iter_named_params(self) -> Iterator[tuple[str, Any]]:
        self.walks += 1
        yield from self.trainer.export()

    def sync_weights(self) -> None:
        if self.mode == "server" and self._weight_metadata is None:
            self._weight_metadata = [name for name, _ in self._iter_named_params()]
        self.engine.update(self._iter_named_params())


class OldTrlGeneration:
    """As TRL 0.28 to 1.10 has it, which pushes parameter by parameter."""

    def __init__(self, trainer: Trainer, engine: Engine, mode: str) -> None:
        self.trainer, self.engine, self.mode = trainer, engine, mode

    def _push_param_to_vllm(self, name: str, param: Any) -> None:
        self.engine.update([(name, param)])

    def sync_weights(self) -> None:
        for name, param in self.trainer.export():
            self._push_param_to_vllm(name, param)


class TrlTrainer:
    """As TRL's GRPOTrainer: its generation, and the state with the global step."""

    class State:
        global_step = 0

    def __init__(self, generation: Any) -> None:
        self.vllm_generation, self.state = generation, self.State()


@pytest.mark.parametrize("mode", ["server", "colocate"])
@pytest.mark.parametrize("made", [TrlGeneration, OldTrlGeneration])
def test_trl(made: Any, mode: str) -> None:
    weights, engine = Trainer(), Engine()
    watch = Watch(engine, on="raise")
    trainer = adapters.trl(TrlTrainer(made(weights, engine, mode)), watch)
    for step in range(3):
        trainer.state.global_step = step
        trainer.vllm_generation.sync_weights()
        weights.step()
    assert [sync.step for sync in watch.last] == [0, 1, 2]
    assert all(set(sync.sent) == set(NAMES) for sync in watch.last)
    if made is TrlGeneration:
        assert trainer.vllm_generation.walks == (4 if mode == "server" else 3)
    engine.deaf = (NAMES[0],)
    trainer.state.global_step = 3
    with pytest.raises(SyncError, match="HIS001 step 3"):
        trainer.vllm_generation.sync_weights()


def test_trl_of_another_version_goes_on_and_is_told() -> None:
    class Other:
        mode = "colocate"
        synced = 0

        def sync_weights(self) -> None:
            self.synced += 1

    trainer = adapters.trl(TrlTrainer(Other()), Watch())
    with pytest.warns(SyncWarning, match="neither _iter_named_params nor _push_param_to_vllm"):
        trainer.vllm_generation.sync_weights()
    assert trainer.vllm_generation.synced == 1


def test_nemo_rl_with_nccl_reshard_passes_a_part_and_the_record_says_so() -> None:
    """As NeMo-RL 7ea279abf calls the producer for what nccl_reshard does not send (megatron_policy_worker.py)."""

    def _broadcast_misc_params_packed(send: Any) -> None:
        send(iterator=trainer.export(), group=engine, src=0, post_iter_func=lambda each: each[1])

    trainer, engine = Trainer(), Engine()
    told: list[Finding] = []
    watch = Watch(on=told.append)
    send = adapters.nemo_rl(packed_broadcast_producer, watch)
    for _ in range(4):
        _broadcast_misc_params_packed(send)
    assert all(sync.partial.startswith("nccl_reshard sends the layers") for sync in watch.last)
    assert [finding.code for finding in told] == ["HIS011"], "that a part stayed the same says nothing of the rest"
