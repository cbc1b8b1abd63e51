"""What a watch reads of an engine's module: fused tensors by parts, and nothing kept alive."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncError, SyncWarning, Watch, module
from ckptcheck.watch.tensor_digests import digests
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

HIDDEN = 16
QKV = (16, 8, 8)
"""Outputs of q, k and v on the rank: grouped queries, so the parts are not even."""
EXPERTS, WIDTH = 4, 6


class Fused(torch.nn.Module):  # type: ignore[misc]
    """As vLLM's and SGLang's QKVParallelLinear: one parameter, and the number of outputs of each part."""

    def __init__(self) -> None:
        super().__init__()
        self.output_partition_sizes = list(QKV)
        self.weight = torch.nn.Parameter(torch.zeros(sum(QKV), HIDDEN), requires_grad=False)


class Experts(torch.nn.Module):  # type: ignore[misc]
    """As their fused experts: gate above up, one expert after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * WIDTH, HIDDEN), requires_grad=False)
        self.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH), requires_grad=False)


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = torch.nn.Module()
        self.self_attn.qkv_proj = Fused()
        self.mlp = torch.nn.Module()
        self.mlp.experts = Experts()


class Engine(torch.nn.Module):  # type: ignore[misc]
    """Loads tensors by the trainer's names into fused parameters, all but those whose name ends with one of `deaf`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.deaf: tuple[str, ...] = ()

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            if not self.deaf or not name.endswith(self.deaf):
                self.view(name).copy_(tensor)

    def view(self, name: str) -> Any:
        layer: Any = self.layers[int(name.split(".")[1])]
        if ".experts." in name:
            _, _, number, part, _ = name.rsplit(".", 4)
            experts = layer.mlp.experts
            whole = experts.w2_weight if part == "down_proj" else experts.w13_weight
            rows = {"gate_proj": slice(0, WIDTH), "up_proj": slice(WIDTH, None), "down_proj": slice(None)}[part]
            return whole[int(number)][rows]
        at = ["q_proj", "k_proj", "v_proj"].index(name.split(".")[3])
        return layer.self_attn.qkv_proj.weight[sum(QKV[:at]) : sum(QKV[: at + 1])]


def names() -> list[str]:
    return [
        f"layers.{layer}.{name}.weight"
        for layer in range(2)
        for name in (
            *(f"self_attn.{part}_proj" for part in "qkv"),
            *(f"mlp.experts.{n}.{part}_proj" for n in range(EXPERTS) for part in ("gate", "up", "down")),
        )
    ]


def weights(engine: Engine, step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    return {name: torch.randn(engine.view(name).shape) for name in names()}


@pytest.mark.parametrize("lost", ["1.self_attn.k_proj.weight", "1.mlp.experts.2.up_proj.weight"])
def test_a_part_of_a_fused_tensor_that_is_lost_is_found(lost: str, tmp_path: Path) -> None:
    engine = Engine()
    watch = Watch(module(engine), on="raise", record=tmp_path / "syncs.jsonl")
    for step in range(3):
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(iter(weights(engine, step).items())))
    assert {key.partition("/")[2]: value for key, value in watch.last[-1].held.items()} == watch.last[-1].sent
    engine.deaf = (lost,)
    with (
        pytest.raises(SyncError, match=rf"HIS001 step 3: 1 tensor of the engine did not change .*: layers.{lost}"),
        watch(step=3) as sync,
    ):
        engine.load_weights(sync.sent(iter(weights(engine, 3).items())))


@pytest.mark.parametrize("lost", ["layers.1.self_attn.k_proj.weight", "layers.1.mlp.experts.2.up_proj.weight"])
def test_a_part_that_is_never_sent_keeps_its_place_and_is_named(lost: str) -> None:
    engine, found = Engine(), list[str]()
    watch = Watch(module(engine), on=lambda finding: found.append(f"{finding.code} {finding.key}"))
    for step in range(3):
        sent = {name: tensor for name, tensor in weights(engine, step).items() if name != lost}
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(iter(sent.items())))
    assert {key.partition("/")[2] for key in watch.last[-1].held} == set(names())
    assert {key for key, value in watch.last[-1].held.items() if watch.last[0].held[key] == value} == {f"0/{lost}"}
    assert found == [f"HIS017 {lost}"]


def test_the_base_keeps_its_parts_where_only_its_adapter_is_sent(tmp_path: Path) -> None:
    engine = Engine()
    watch = Watch(module(engine), on="raise", record=tmp_path / "syncs.jsonl")
    for step in range(4):
        adapter = {"layers.0.self_attn.q_proj.lora_B.weight": torch.full((16, 2), float(step))}
        with watch(step=step) as sync:
            if step == 0:
                engine.load_weights(sync.sent(weights(engine, 0).items()))
            list(sync.sent(iter(adapter.items())))
    assert [len(sync.sent) for sync in watch.last] == [len(names()) + 1, 1, 1, 1]
    assert watch.last[0].held == watch.last[3].held, "the fused tensors are still looked at by their parts"
    assert {key.partition("/")[2] for key in watch.last[3].held} == set(names())


def test_the_rows_of_a_vocabulary_are_looked_at_without_their_padding() -> None:
    """As vLLM's embedding, whose rows are a multiple of 64."""
    engine: Any = torch.nn.Module()
    engine.embed = torch.nn.Embedding(64, 4)
    engine.embed.org_vocab_size = 50
    watch, table = Watch(module(engine)), torch.randn(50, 4)
    with watch(step=0) as sync:
        for _, value in sync.sent(iter([("embed.weight", table)])):
            engine.embed.weight.data[:50] = value
    assert watch.last[0].held == {"0/embed.weight": watch.last[0].sent["embed.weight"]}
    engine.embed.org_vocab_size = 100  # of two ranks' halves
    other = Watch(module(engine))
    with other(step=0) as sync:
        list(sync.sent(iter([("embed.weight", table)])))
    assert other.last[0].held["0/embed.weight"] != other.last[0].sent["embed.weight"]


def test_an_engine_that_changed_is_read_anew() -> None:
    """Where the watch found a tensor before, another may lie now, or none."""
    engine, found = Engine(), list[Any]()
    watch = Watch(module(engine), on=found.append)
    for step in range(4):
        if step == 1:
            engine.layers[1].self_attn.qkv_proj = Fused()
        if step == 2:
            fused = engine.layers[0].self_attn.qkv_proj
            fused.weight = torch.nn.Parameter(torch.zeros(HIDDEN, sum(QKV)).t(), requires_grad=False)
        if step == 3:
            engine.layers[0].mlp.experts.further = torch.nn.Parameter(torch.ones(3))
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(weights(engine, step).items()))
        held = {key.partition("/")[2]: value for key, value in watch.last[-1].held.items()}
        assert watch.last[-1].sent.items() <= held.items(), step
    assert "layers.0.mlp.experts.further" in held
    # who exchanges modules between syncs writes to the engine
    assert [finding.code for finding in found] == ["HIS023", "HIS023"]


def test_parts_that_are_not_certain_are_held_whole() -> None:
    engine = Engine()
    engine.layers[0].self_attn.qkv_proj.output_partition_sizes = [32]
    engine.layers[1].mlp.experts.global_num_experts = 8  # another rank has the others
    watch = Watch(module(engine))
    with watch(step=0) as sync:
        engine.load_weights(sync.sent(weights(engine, 0).items()))
    held = {key.partition("/")[2] for key in watch.last[0].held}
    assert {"layers.0.self_attn.qkv_proj.weight", "layers.1.mlp.experts.w13_weight"} <= held
    assert {"layers.1.self_attn.k_proj.weight", "layers.0.mlp.experts.3.up_proj.weight"} <= held


def test_experts_that_a_trainer_has_in_one_parameter_are_compared_with_it() -> None:
    engine, found = Engine(), list[str]()
    watch = Watch(module(engine), on=lambda finding: found.append(f"{finding.code} {finding.key}"))
    experts = engine.layers[0].mlp.experts
    sent = {
        "layers.0.mlp.experts.gate_up_proj": experts.w13_weight.detach() + 1,
        "layers.0.mlp.experts.down_proj": experts.w2_weight.detach() + 1,
    }
    with torch.no_grad(), watch(step=0) as sync:
        list(sync.sent(sent.items()))
        experts.w13_weight.copy_(sent["layers.0.mlp.experts.gate_up_proj"])
    held, known = watch.last[-1].held, watch.last[-1].sent
    assert {name for name, value in known.items() if held[f"0/{name}"] == value} == {
        "layers.0.mlp.experts.gate_up_proj"
    }
    assert found == ["HIS008 layers.0.mlp.experts.down_proj"]
    experts.global_num_experts = 8  # another rank has the others
    watch = Watch(module(engine))
    with watch(step=1) as sync:
        list(sync.sent(sent.items()))
    assert "0/layers.0.mlp.experts.w13_weight" in watch.last[-1].held


def test_experts_of_a_rank_have_the_numbers_of_its_map() -> None:
    engine = Engine()
    engine.layers[0].mlp.experts.expert_map = torch.tensor([-1, -1, 0, 1, 2, 3])
    watch = Watch(module(engine))
    with watch(step=0) as sync:
        list(sync.sent((f"layers.0.mlp.experts.{n}.down_proj.weight", torch.zeros(1)) for n in range(6)))
    held = {key.partition("/")[2] for key in watch.last[0].held if "layers.0.mlp" in key}
    assert {f"layers.0.mlp.experts.{n}.down_proj.weight" for n in (2, 3, 4, 5)} <= held


def push_packed(engine: Engine, given: Iterable[tuple[str, Any]]) -> None:
    """Load projections as vLLM's dispatch_cpu_unquantized_gemm: pack them, and empty the parameter."""
    list(given)
    for layer in engine.layers:
        layer.self_attn.qkv_proj.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def engine_without_experts() -> Engine:
    engine = Engine()
    for layer in engine.layers:
        layer.mlp = torch.nn.Module()
    return engine


def test_a_packed_layer_that_cannot_be_read_is_unseen_and_not_unchanged(tmp_path: Path) -> None:
    engine, told = engine_without_experts(), list[Any]()
    watch = Watch(module(engine), on=told.append, record=tmp_path / "syncs.jsonl")
    for step in range(4):
        with watch(step=step) as sync:
            push_packed(engine, sync.sent(iter(weights(Engine(), step).items())))
    assert [finding.code for finding in told] == ["HIS011"], "said once, and no tensor is called stale"
    history = open_history(tmp_path / "syncs.jsonl")
    assert set(history.unseen) == {f"0/layers.{number}.self_attn.qkv_proj.weight" for number in range(2)}
    assert any("unseen in the engine: 2 tensors" in line for line in history.sections[0].lines)


class OwnEngine:
    """An engine of the user's own, which tells the digest of an empty parameter."""

    name, alike = "own", True

    def held(self) -> dict[str, str]:
        return {"0/w": "0" * 32}

    def version(self) -> str | None:
        return None


def test_the_digest_of_no_bytes_is_no_digest() -> None:
    watch = Watch(OwnEngine(), on=lambda finding: None)
    with watch(step=0) as sync:
        list(sync.sent([("w", torch.zeros(3))]))
    assert (watch.last[0].held, watch.last[0].unseen) == ({}, ["0/w"])


class WholeEngine:
    """An engine of the user's own, which digests its tensors itself, and so in no part that a watch chooses."""

    name, alike = "own", True

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def held(self) -> Mapping[str, str]:
        return {f"0/{name}": value for name, value in digests(self.weights.items()).items()}

    def version(self) -> str | None:
        return None


def test_an_engine_that_digests_whole_tensors_is_held_against_whole_tensors() -> None:
    engine, found = WholeEngine(), list[str]()
    watch = Watch(engine, on=lambda finding: found.append(finding.code), share=1e-9, budget=60.0)
    watch.schedule.groups, watch.schedule.choose_groups = 2, lambda: 2  # type: ignore[method-assign]
    stale = torch.zeros(64, 1024)
    for step in range(30):
        assert found == [] or step > 20
        with watch(step=step) as sync:
            weights = {f"w{number}": torch.full((64, 1024), float(step)) for number in range(8)}
            engine.weights = dict(sync.sent(weights.items()))
            if step >= 20:
                engine.weights["w3"] = stale
    assert watch.wait(60)
    assert watch.schedule.groups > 1
    assert set(found) == {"HIS001", "HIS008"}, "that the engine kept w3 from step 20 on"


def test_nothing_that_passes_is_kept_alive() -> None:
    """A bucket is freed before the next one is made: a job has room for one of them on its GPU."""
    alive: list[weakref.ref[Any]] = []

    def living() -> int:
        gc.collect()
        return sum(each() is not None for each in alive)

    def make() -> Any:
        assert living() == 0, "the last one is still alive while this one is made"
        tensor = torch.zeros(3)
        alive.append(weakref.ref(tensor))
        return tensor

    def pairs() -> Iterator[tuple[str, Any]]:
        for number in range(3):
            yield f"w{number}", make()

    def buckets() -> Iterator[list[tuple[str, Any]]]:
        for number in range(3):
            yield [(f"w{number}", make())]

    async def stream() -> AsyncIterator[tuple[str, Any]]:
        for number in range(3):
            yield f"w{number}", make()

    def drop(handed: Any) -> None:
        """Take one and free it, as a sender does: nothing else may hold it, the watch's own frame included."""
        while (item := next(handed, None)) is not None:
            del item
            assert living() == 0

    async def drop_stream(handed: Any) -> None:
        async for item in handed:
            del item
            assert living() == 0

    watch = Watch()
    with watch() as sync:
        drop(iter(sync.sent(pairs())))
    with watch() as sync:
        drop(iter(sync.chunks(buckets())))
    with watch() as sync:
        asyncio.run(drop_stream(sync.sent(stream())))
    assert [len(each.sent) for each in watch.last] == [3, 3, 3]
    assert len(alive) == 9


def test_a_watch_warns_of_nothing_in_a_sound_job_of_parts() -> None:
    import warnings

    engine = Engine()
    watch = Watch(module(engine), share=1e6, budget=60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyncWarning)
        for step in range(3):
            with watch(step=step) as sync:
                engine.load_weights(sync.sent(iter(weights(engine, step).items())))


@pytest.mark.parametrize("first_lost", range(3, 13))
def test_a_tensor_lost_in_a_watch_of_groups_is_found_within_ten_syncs(first_lost: int) -> None:
    engine, lost, found = Engine(), "layers.1.self_attn.k_proj.weight", list[int]()
    # the test decides on the groups, not the time that digests take here
    watch = Watch(module(engine), on=lambda finding: found.append(step), share=1e6, budget=60.0)
    watch.schedule.groups, watch.schedule.choose_groups = 4, lambda: 4  # type: ignore[method-assign]
    looked: set[str] = set()
    for step in range(first_lost + 11):
        engine.deaf = (lost,) if step >= first_lost else ()
        with watch(step=step) as sync:
            engine.load_weights(sync.sent(iter(weights(engine, step).items())))
        assert 0 < len(watch.last[-1].sent) < len(names()) * 0.6
        looked |= watch.last[-1].sent.keys()
        if found:
            break
    assert found, "it was lost for eleven syncs"
    assert first_lost <= found[0] < first_lost + 10


def test_digests_that_take_too_much_stop_at_the_budget() -> None:
    engine = Engine()
    watch = Watch(module(engine), budget=0.0)
    with pytest.warns(SyncWarning, match=r"digests took more than 0 s \(budget\) of a sync"), watch(step=0) as sync:
        engine.load_weights(sync.sent(iter(weights(engine, 0).items())))
    assert (watch.last[0].sent, watch.last[0].held) == ({}, {})
    assert watch.schedule.groups > 1
