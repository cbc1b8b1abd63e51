"""The real vLLM on CPU: what it holds after an update, what it says of it, and what it computes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sent
import served_models as tiny
from conftest import needs
from safetensors.numpy import load_file

from ckptcheck.engines import group, reading
from ckptcheck.engines.base import Manifest
from ckptcheck.engines.digest import digest
from ckptcheck.engines.loading import Mode
from ckptcheck.engines.vllm import VllmEngine, VllmOptions
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.host import Host

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parent.parent
TOKENS = [5 + 7 * place % 499 for place in range(200)]
"""Longer than a block of the prefix cache, which is 128 tokens on CPU."""
KEY, DOWN = "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"
QKV = "model.layers.1.self_attn.qkv_proj.weight"


def python() -> Path:
    try:
        return interpreter("vllm").python
    except CkptcheckError as missing:
        pytest.skip(f"{missing.message}: {missing.hint}")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("torch", "transformers")
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in ("llama", "qwen3-tied", "qwen3-moe"):
        tiny.build(kind, str(folder / kind))
    return folder


@pytest.fixture(scope="module")
def engine(checkpoints: Path) -> Iterator[VllmEngine]:
    """One process; the tests load into it what they need."""
    python()
    with VllmEngine(checkpoints / "llama") as running:
        yield running


@pytest.fixture(scope="module")
def sender() -> Iterator[Host]:
    with Host(python(), ROOT / "far" / "gloo_sender.py") as running:
        yield running


def differing(one: Manifest, other: Manifest) -> set[str]:
    return {name for rank, name in one if one[rank, name].digest != other[rank, name].digest}


def places(manifest: Manifest) -> dict[tuple[int, str], str]:
    """Where parameters and buffers lie. What is derived may lie elsewhere after every update, as copies of scales do."""
    return {key: entry.place for key, entry in manifest.items() if entry.kind != "derived"}


def far(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference; NaN is far from everything."""
    assert len(one) == len(other)
    return max(abs(a - b) if a == a and b == b else 1e9 for a, b in zip(one, other, strict=True))


def without(tensors: Mapping[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: values for name, values in tensors.items() if name not in names}


@pytest.mark.parametrize("kind", ["llama", "qwen3-tied", "qwen3-moe"])
def test_a_refit_in_plain_mode_is_a_cold_load_and_what_transformers_computes(
    engine: VllmEngine, checkpoints: Path, kind: str, tmp_path: Path
) -> None:
    engine.restart(checkpoints / kind, VllmOptions())
    start = engine.manifest()
    weights = sent.stepped(sent.weights(checkpoints / kind))
    scrambled = engine.scramble()
    assert scrambled.names == {key for key, entry in start.items() if entry.kind == "parameter"}
    assert set(engine.leftovers()) == scrambled.names
    marked = engine.manifest()
    assert differing(start, marked) == {name for _, name in scrambled.names}
    with Exchange() as exchange:
        answer = engine.refit(sent.buckets(weights, exchange, 100_000), "reload")
        assert answer.ok, answer.message
        assert not engine.leftovers()
        after = engine.manifest()
        assert engine.refit(sent.buckets(weights, exchange), "reload").ok
    assert not differing(after, engine.manifest())
    assert places(after) == places(start)
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        assert after[0, name].digest == digest(weights[name])
    engine.reset_prefix_cache()
    score = engine.score([TOKENS], decode=4)[0]
    follow = engine.follow([TOKENS], 150)[0]
    step = sent.checkpoint(checkpoints / kind, weights, tmp_path / "step")
    truth = tiny.logprobs(str(step), TOKENS)
    assert far(score.prompt, truth) < 2e-5
    assert far(follow, truth[149:]) < 2e-5
    assert far(score.decode, tiny.logprobs(str(step), [*TOKENS, *score.decoded])[-4:]) < 2e-5
    engine.restart(step)
    assert not differing(after, engine.manifest())


def test_what_was_not_sent_is_told_by_element(engine: VllmEngine, checkpoints: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions())
    weights = without(sent.weights(checkpoints / "llama"), KEY, DOWN)
    with Exchange() as exchange:
        parcels = sent.buckets(weights, exchange)
        engine.scramble()
        assert engine.refit(parcels, "reload").ok
        left = engine.leftovers()
        assert set(left) == {(0, QKV), (0, DOWN)}
        rows = ((128 * 64, 192 * 64),)  # those of k, below 128 of q
        assert (left[0, QKV].count, left[0, QKV].blank, left[0, QKV].blanks) == (0, 64 * 64, rows)
        assert (left[0, DOWN].count, left[0, DOWN].blank) == (64 * 128, 0)
        engine.scramble()
        answer = engine.refit(parcels, "load_weights")
        assert answer.ok
        assert answer.returned is not None
        assert QKV in answer.returned  # so what it returns proves nothing
        assert engine.leftovers()[0, QKV].ranges == rows
        unknown = {"model.strange.weight": np.ones(4, np.float32)}
        answer = engine.refit(sent.buckets(unknown, exchange), "load_weights")
    assert not answer.ok
    assert "ValueError" in answer.message
    assert "strange" in answer.message


def test_the_prefix_cache_is_stale_and_prefill_does_not_see_it(engine: VllmEngine, checkpoints: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions())
    weights = sent.stepped(sent.weights(checkpoints / "llama"), 0.2)
    assert engine.score([TOKENS], decode=1)[0].cached == 0
    with Exchange() as exchange:
        assert engine.refit(sent.buckets(weights, exchange), "reload").ok
    stale = engine.score([TOKENS], decode=1)[0]
    engine.reset_prefix_cache()
    fresh = engine.score([TOKENS], decode=1)[0]
    assert (stale.cached, fresh.cached) == (128, 0)
    assert stale.prompt == fresh.prompt
    assert far(stale.decode, fresh.decode) > 1e-3


def test_a_flipped_bit_is_seen_and_fetched(engine: VllmEngine, checkpoints: Path, tmp_path: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions())
    before = engine.manifest()
    engine.poke(DOWN, 100, 3)
    assert differing(before, engine.manifest()) == {DOWN}
    held = load_file(engine.fetch([(0, DOWN)], tmp_path))[f"0/{DOWN}"]
    sure = sent.weights(checkpoints / "llama")[DOWN]
    assert np.flatnonzero(held != sure).tolist() == [100]
    assert engine.manifest()[0, DOWN].digest == digest(held)


def stock(engine: VllmEngine, source: Path, tmp_path: Path) -> tuple[Manifest, Manifest, Manifest, float]:
    """Refit in stock mode: manifests at the start, after, and of a cold load; how far logprobs are off."""
    mode: Mode = "stock"
    engine.restart(source, VllmOptions(mode=mode))
    weights = sent.stepped(sent.weights(source))
    start = engine.manifest()
    with Exchange() as exchange:
        answer = engine.refit(sent.buckets(weights, exchange), "reload")
    assert answer.ok, answer.message
    after, score = engine.manifest(), engine.score([TOKENS])[0]
    step = sent.checkpoint(source, weights, tmp_path / "step")
    truth = tiny.logprobs(str(step), TOKENS)
    engine.restart(step)
    assert far(engine.score([TOKENS])[0].prompt, truth) < 2e-5
    return start, after, engine.manifest(), far(score.prompt, truth)


def test_stock_mode_hides_weights_and_its_tied_head_goes_stale(
    engine: VllmEngine, checkpoints: Path, tmp_path: Path
) -> None:
    start, after, cold, off = stock(engine, checkpoints / "qwen3-tied", tmp_path)
    assert not differing(after, cold)
    assert off > 1e-3
    assert after[0, QKV].opaque == "it is empty: the engine computes with a packed copy"
    packed = {name for (_, name), entry in after.items() if entry.opaque == "packed for oneDNN"}
    assert "lm_head.cpu_linear.handler" in packed
    same = {name for name in packed if after[0, name].place == start[0, name].place}
    assert same == {"lm_head.cpu_linear.handler"}  # packed from weights that are no more


def test_stock_mode_leaves_experts_in_another_layout(engine: VllmEngine, checkpoints: Path, tmp_path: Path) -> None:
    _, after, cold, off = stock(engine, checkpoints / "qwen3-moe", tmp_path)
    experts = "model.layers.{}.mlp.experts.routed_experts.{}_weight"
    assert differing(after, cold) == {experts.format(layer, part) for layer in (0, 1) for part in ("w13", "w2")}
    assert off > 0.1


def by_gloo(engine: VllmEngine, sender: Host, source: Path, ranks: int) -> None:
    """Two syncs by the weight-transfer API, with other buckets, are as good as reload_weights."""
    before = engine.manifest()
    assert engine.version() == "default"
    for number, most in ((1, 100_000), (2, 1e9)):
        weights = sent.stepped(sent.weights(source), seed=number)
        with Exchange() as exchange, ThreadPoolExecutor(1) as threads:
            plan = sent.buckets(weights, exchange, most)
            engine.scramble()
            place = group.rendezvous(ranks, f"sync-{number}", timeout=60)
            parcels = [reading.parcel(parcel) for parcel in plan]
            sending = threads.submit(sender.call, "send", timeout=120, group=place, parcels=parcels)
            answer = engine.refit(group.addressed(plan, place), "gloo", timeout=120)
            sending.result()
            assert answer.ok, answer.message
            assert answer.version == str(number)
            assert not engine.leftovers()
            after = engine.manifest()
            assert {name for _, name in engine.scramble().names} <= differing(before, after)
            assert engine.refit(plan, "reload").ok
        assert not differing(after, engine.manifest())


def test_the_weight_transfer_api_by_gloo(engine: VllmEngine, sender: Host, checkpoints: Path) -> None:
    engine.restart(checkpoints / "qwen3-moe", VllmOptions())
    by_gloo(engine, sender, checkpoints / "qwen3-moe", 1)


def test_a_sender_that_never_comes_is_an_answer(engine: VllmEngine, checkpoints: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions())
    with Exchange() as exchange:
        plan = sent.buckets(sent.weights(checkpoints / "llama"), exchange)
    answer = engine.refit(group.addressed(plan, group.rendezvous(1, "nobody", timeout=1)), "gloo", timeout=60)
    assert not answer.ok
    assert answer.message


def test_updates_do_not_leak(engine: VllmEngine, checkpoints: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions())
    with Exchange() as exchange:
        parcels = sent.buckets(sent.weights(checkpoints / "llama"), exchange)
        for _ in range(3):
            engine.refit(parcels, "reload")
        before = engine.memory()
        for _ in range(20):
            engine.refit(parcels, "reload")
    nbytes = sum(parcel.nbytes for parcel in parcels)
    assert engine.memory() - before < 10 * nbytes


def test_bfloat16_is_refitted_bit_by_bit(engine: VllmEngine, checkpoints: Path, tmp_path: Path) -> None:
    engine.restart(checkpoints / "llama", VllmOptions("bfloat16"))
    cold = engine.manifest()
    assert engine.info.dtype == "bfloat16"
    assert cold[0, QKV].dtype == "BF16"
    engine.scramble()
    with Exchange() as exchange:
        assert engine.refit(sent.buckets(sent.weights(checkpoints / "llama"), exchange), "reload").ok
    assert not engine.leftovers()
    assert not differing(cold, engine.manifest())


def test_two_ranks(checkpoints: Path, sender: Host) -> None:
    source = checkpoints / "qwen3-moe"
    with VllmEngine(source, VllmOptions(ranks=2)) as engine:
        entries = engine.manifest()
        assert {rank for rank, _ in entries} == {0, 1}
        assert [entries[rank, QKV].shape for rank in (0, 1)] == [(128, 64), (128, 64)]
        assert entries[0, QKV].digest != entries[1, QKV].digest
        assert entries[0, "model.norm.weight"].digest == entries[1, "model.norm.weight"].digest
        assert far(engine.score([TOKENS])[0].prompt, tiny.logprobs(str(source), TOKENS)) < 2e-5
        by_gloo(engine, sender, source, 2)
