"""Trainers hold the model that was loaded, learn the same in every layout, and hand out what they hold."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.live.runtime.engines.base import Bucket
from ckptcheck.live.runtime.environments.recipe import find_recipe
from ckptcheck.live.runtime.environments.store import find_environment
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers import megatron
from ckptcheck.live.runtime.trainers.base import OptimizerStep, UnlikeReplicas
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.megatron_source import write_hf_checkpoint
from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from tests.paths import DOUBLES

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        find_environment(find_recipe("megatron")).state != "ready", reason="needs ckptcheck engine install megatron"
    ),
]
PATIENCE = 300.0
SEQUENCES = [[5, 9, 300, 41, 41, 7, 8, 100, 511], [3, 400, 22, 1, 17], [250, 30, 77, 6, 90, 301, 12]]
CELLS = [
    ("llama", ParallelLayout(), "float32"),
    ("qwen2", ParallelLayout(tp=2), "float32"),
    ("qwen3", ParallelLayout(pp=2), "float32"),
    ("qwen3", ParallelLayout(tp=2, pp=2), "float32"),
    ("qwen3-tied", ParallelLayout(tp=2, pp=2), "float32"),
    ("qwen3-moe", ParallelLayout(), "float32"),
    ("qwen3-moe", ParallelLayout(ep=2), "float32"),
    ("qwen3-moe", ParallelLayout(tp=2), "float32"),
    ("qwen3-moe", ParallelLayout(tp=2, pp=2, ep=2), "float32"),
    ("llama-nine", ParallelLayout(tp=3), "float32"),
    ("qwen3", ParallelLayout(tp=2), "bfloat16"),
]
Tensors = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Run:
    """What a trainer said and handed out, step by step."""

    names: frozenset[str]
    exported: Tensors
    digests: dict[str, str]
    scores: list[tuple[float, ...]]
    greedy: tuple[int, ...]
    perturbed: Tensors
    before: list[tuple[float, ...]]
    step: OptimizerStep
    stepped: Tensors
    replicas: tuple[UnlikeReplicas, ...]


def tensors(files: Sequence[Path]) -> Tensors:
    """Return the tensors of files; bfloat16 as its bits."""
    found: Tensors = {}
    for path in files:
        raw = path.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:begin])
        for name in header.keys() - {"__metadata__"}:
            kind = {"F32": "<f4", "BF16": "<u2"}[header[name]["dtype"]]
            low, high = header[name]["data_offsets"]
            found[name] = np.frombuffer(raw[begin + low : begin + high], kind).reshape(header[name]["shape"])
    return found


def received(parcels: Sequence[Bucket]) -> Tensors:
    found = tensors([Path(parcel.address["path"]) for parcel in parcels])
    assert set(found) == {name for parcel in parcels for name in parcel.names}
    return found


def rounded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float32 as bfloat16's bits, rounded to nearest, ties to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Bench:
    """One process of each kind of trainer for all tests, one exchange, and what was run already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchange = TensorExchange("file")
        self.hosts: dict[str, WorkerClient] = {}
        self.run = cache(self._run)

    def model(self, name: str) -> Checkpoint:
        folder = self.folder / name
        if not folder.exists():
            live.write(name, folder)
        return open_checkpoint(str(folder))

    def start(self, model: Checkpoint, layout: ParallelLayout | None, dtype: str = "float32") -> RemoteTrainer:
        kind = "transformers" if layout is None else "megatron"
        process = TrainerProcess(timeout=PATIENCE, host=self.hosts.get(kind))
        if layout is None:
            trainer = start_transformers(model, self.exchange, dtype=dtype, process=process)
        else:
            trainer = start_megatron(model, self.exchange, layout=layout, dtype=dtype, process=process)
        self.hosts[kind] = trainer.host
        return trainer

    def _run(self, name: str, layout: ParallelLayout | None, dtype: str) -> Run:
        trainer = self.start(self.model(name), layout, dtype)
        exported = received(trainer.export(1 << 14))
        digests, scores, greedy = (
            dict(trainer.digests()),
            trainer.score(SEQUENCES),
            trainer.decode_greedy(SEQUENCES[0], 6),
        )
        trainer.perturb(0.02, seed=3)
        perturbed, before = received(trainer.export(1 << 40)), trainer.score(SEQUENCES)
        step = trainer.step(SEQUENCES, seed=1)
        stepped, replicas = received(trainer.export(1 << 16)), trainer.mismatched_replicas()
        return Run(
            frozenset(weight.name for weight in trainer.weights()),
            exported, digests, scores, greedy, perturbed, before, step, stepped, replicas,
        )  # fmt: skip

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.exchange.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "MODULE", DOUBLES / "faulty_megatron_trainer.py")
        made = Bench(tmp_path_factory.mktemp("live"))
        yield made
        made.close()


def apart(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    return max(abs(a - b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("name", "layout", "dtype"), CELLS, ids=lambda value: str(value) or "TP1")
def test_a_layout_changes_nothing(name: str, layout: ParallelLayout, dtype: str, bench: Bench) -> None:
    seen, reference = bench.run(name, layout, dtype), bench.run(name, None, dtype)
    source = tensors([bench.folder / name / "model.safetensors"])
    assert seen.names == reference.names == set(source)
    for tensor, values in source.items():
        there = values if dtype == "float32" else rounded(values)
        assert np.array_equal(seen.exported[tensor], there), tensor
        assert np.array_equal(seen.perturbed[tensor], reference.perturbed[tensor]), tensor
        assert not np.array_equal(seen.perturbed[tensor], seen.exported[tensor]), tensor
        assert not np.array_equal(seen.perturbed[tensor], seen.stepped[tensor]), tensor
    assert seen.digests == reference.digests
    assert len(set(seen.digests.values())) == len(source)
    assert seen.step.scores == tuple(seen.before)  # the forward of a step is that of a score
    assert (seen.step.unchanged, seen.replicas) == ((), ())
    floor = {"float32": 1e-5, "bfloat16": 0.1}[dtype]
    assert apart(seen.scores, reference.scores) < floor
    assert abs(seen.step.grad_norm / reference.step.grad_norm - 1) < floor
    if dtype == "float32":
        assert seen.greedy == reference.greedy
        for tensor in source:
            assert np.abs(seen.stepped[tensor] - reference.stepped[tensor]).max() < 2e-6, tensor


def test_megatrons_own_saver_gathers_the_same(bench: Bench, tmp_path: Path) -> None:
    """Its sharding metadata and ours are two ways to put a model together; this package reads what it wrote."""
    for name, layout in (("qwen3-moe", ParallelLayout(tp=2, pp=2, ep=2)), ("llama-nine", ParallelLayout(tp=3))):
        trainer = bench.start(bench.model(name), layout)
        trainer.step(SEQUENCES, seed=4)
        exported = received(trainer.export(1 << 20))
        trainer.save_torch_dist(tmp_path / name)
        again = write_hf_checkpoint(open_target(str(tmp_path / name)), tmp_path / f"{name}-hf")  # type: ignore[arg-type]
        gathered = tensors(sorted((tmp_path / f"{name}-hf").glob("*.safetensors")))
        assert gathered.keys() == exported.keys()
        assert all(np.array_equal(gathered[tensor], exported[tensor]) for tensor in exported)
        scores = trainer.score(SEQUENCES)
        trainer.save(tmp_path / f"{name}-saved")
        for source in (again, open_checkpoint(str(tmp_path / f"{name}-saved"))):
            assert apart(bench.start(source, None).score(SEQUENCES), scores) < 1e-5


def test_the_same_seed_gives_the_same_step(bench: Bench) -> None:
    def stepped(seed: int) -> dict[str, str]:
        trainer = bench.start(bench.model("qwen3-moe"), ParallelLayout(ep=2))
        trainer.step(SEQUENCES, seed=seed)
        return dict(trainer.digests())

    first = stepped(7)
    assert stepped(7) == first
    other = stepped(8)
    assert all(other[name] != first[name] for name in first)


def test_a_step_goes_on_from_what_was_perturbed(bench: Bench) -> None:
    """bfloat16 is trained in float32 copies, which have to take over what was changed by hand."""
    for layout in (ParallelLayout(tp=2), None):
        trainer = bench.start(bench.model("qwen3-moe"), layout, "bfloat16")
        trainer.step(SEQUENCES)
        trainer.perturb(0.5, seed=1)
        perturbed = trainer.digests()
        step = trainer.step(SEQUENCES, rate=0.0)
        assert trainer.digests() == perturbed
        assert len(step.unchanged) > 20


def test_ranks_that_hold_different_copies_are_named(bench: Bench) -> None:
    trainer = bench.start(bench.model("qwen3-tied"), ParallelLayout(tp=2, pp=2))
    assert trainer.mismatched_replicas() == ()
    norm = "decoder.layers.1.self_attention.k_layernorm.weight"
    trainer.host.call("perturb_one_rank", rank=3, name=norm)
    trainer.host.call("perturb_one_rank", rank=2, name="output_layer.weight")  # the tied head of the last stage
    assert trainer.mismatched_replicas() == (
        UnlikeReplicas(norm, ((2,), (3,)), (2,)),
        UnlikeReplicas("embedding.word_embeddings.weight", ((0,), (2,)), (0,)),
    )


def test_weights_go_over_gloo_in_the_order_of_the_plan(bench: Bench) -> None:
    for layout in (ParallelLayout(tp=2, pp=2), None):
        trainer = bench.start(bench.model("qwen3-tied"), layout)
        plan = trainer.plan_buckets(1 << 16)
        assert len(plan) > 1
        assert [name for parcel in plan for name in parcel.names] == [weight.name for weight in trainer.weights()]
        group = {
            "kind": "gloo",
            "host": "127.0.0.1",
            "port": free_port(),
            "world_size": 2,
            "key": "one",
            "timeout": 60,
        }
        with WorkerClient(find_environment(find_recipe("megatron")).python, DOUBLES / "gloo_receiver.py") as receiver:
            sender = threading.Thread(target=trainer.send, args=(group, 1 << 16))
            sender.start()
            said = receiver.call("receive", group=group, shapes=[w.shape for w in trainer.weights()], timeout=PATIENCE)
            sender.join()
        assert said == [trainer.digests()[weight.name] for weight in trainer.weights()]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_what_cannot_be_asked_is_said_and_survived(bench: Bench) -> None:
    for layout in (ParallelLayout(pp=2), None):
        trainer = bench.start(bench.model("llama"), layout)
        with pytest.raises(RemoteError, match="sequence 1 holds the token 512, and the vocabulary ends at 512"):
            trainer.score([[1, 2], [1, 512]])
        with pytest.raises(RemoteError, match="sequence 0 has 1 tokens, and at least 2 are needed"):
            trainer.step([[1]])
        assert trainer.score([[7]]) == [()]
        assert len(trainer.score(SEQUENCES)) == 3


def test_a_checkpoint_that_lacks_a_weight_is_refused(bench: Bench, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    live.write("llama", tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    held["model.layers.1.odd.weight"] = held.pop("model.layers.1.mlp.up_proj.weight")
    save_file(held, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(RemoteError, match=r"the checkpoint lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        bench.start(open_checkpoint(str(tmp_path)), ParallelLayout(tp=2))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_killed_rank_ends_the_trainer_with_a_word(tmp_path: Path) -> None:
    with TensorExchange("file") as exchange:
        trainer = start_megatron(
            open_checkpoint(str(live.write("qwen3", tmp_path))),
            exchange,
            layout=ParallelLayout(tp=2, pp=2),
            process=TrainerProcess(timeout=PATIENCE),
        )
        parent = trainer.host._process.pid
        ranks = [int(text) for text in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        assert len(ranks) == 4
        os.kill(ranks[2], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"megatron died \(exit code 70\) when asked to score") as caught:
            trainer.score(SEQUENCES)
        assert caught.value.hint == "its last output: RuntimeError: rank 2 died (SIGKILL) when asked to score"
        trainer.close()
        trainer.close()
        assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
