"""Every fault of the fake engine shows, and without one a refit is what a cold load is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ckptcheck.live.refit.expert_slots import count_moves, find_wrong_slots
from ckptcheck.live.runtime.engines.base import UpdateResult
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.live.runtime.process.exchange import TensorExchange
from tests.doubles.fake_engine import FakeEngine, ReceivingEngine
from tests.doubles.fake_experts import BalancingFakeEngine
from tests.doubles.fake_fault import Fault, FaultKind
from tests.doubles.fake_images import SeeingFakeEngine
from tests.doubles.fake_model import SCALE_BUFFER
from tests.factories import sent_buckets

LAYER = "model.layers.0"
K, Q, OUT = (f"{LAYER}.self_attn.{part}_proj.weight" for part in "kqo")
QKV = f"{LAYER}.self_attn.qkv_proj.weight"
NORM = f"{LAYER}.input_layernorm.weight"
DOWN = f"{LAYER}.mlp.experts.1.down_proj.weight"
EXPERTS = f"{LAYER}.mlp.experts"
ROTARY = "model.rotary_emb.cos_sin_cache"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (16, 8), "lm_head.weight": (16, 8), NORM: (8,)}
    shapes |= {
        Q: (8, 8),
        K: (4, 8),
        K.replace("k_", "v_"): (4, 8),
        OUT: (8, 8),
        OUT.replace("layers.0", "layers.1"): (8, 8),
    }
    for expert in (0, 1):
        for part, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6))):
            shapes[f"{EXPERTS}.{expert}.{part}_proj.weight"] = shape
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def refit(engine: FakeEngine, seed: int = 1, most: float = 600, transport: str = "reload") -> UpdateResult:
    with TensorExchange() as exchange:
        return engine.update_weights(sent_buckets.write_buckets(weights(seed), exchange, most), transport)


def differing(engine: FakeEngine, seed: int = 1) -> set[tuple[int, str]]:
    cold = FakeEngine(weights(seed), ranks=engine.info.ranks, draft=len(engine._draft) > 1).digest_tensors()
    return {key for key, entry in engine.digest_tensors().items() if entry.digest != cold[key].digest}


def test_a_refit_without_a_fault_is_a_cold_load() -> None:
    engine = FakeEngine(weights(0), ranks=2, draft=True)
    before = engine.digest_tensors()
    scrambled = engine.scramble_weights()
    assert set(engine.find_unwritten()) == scrambled.names
    assert len({entry.digest for entry in engine.digest_tensors().values()}) == len(scrambled.names) + 1
    assert refit(engine).ok
    assert not differing(engine)
    assert not engine.find_unwritten()
    assert engine.score([TOKENS], decode=3) == FakeEngine(weights(1)).score([TOKENS], decode=3)
    after = engine.digest_tensors()
    assert {key: entry.storage for key, entry in after.items()} == {key: entry.storage for key, entry in before.items()}
    assert refit(engine, 2, most=5000).ok
    assert not differing(engine, 2)
    memory = engine.memory_bytes()
    assert refit(engine, 3).ok
    assert engine.memory_bytes() == memory


WRONG = {
    Fault("dropped", OUT): {OUT},
    Fault("dropped", K): {QKV},
    Fault("partial", K): {QKV},
    Fault("swapped", Q, OUT): {QKV, OUT},
    Fault("cast", NORM): {NORM},
    Fault("restored", OUT): {OUT},
    Fault("unsent", NORM): {NORM},
    Fault("rotary"): {ROTARY},
    Fault("derived"): {"lm_head.packed"},
    Fault("emptied", OUT): {OUT},
    Fault("unmarked", OUT): set(),
    Fault("spilled"): {ROTARY},
    Fault("cast", DOWN): {f"{EXPERTS}.w2_weight"},
}


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: f"{fault.kind}-{fault.name[-18:]}")
def test_what_is_wrong_is_what_the_fault_names(fault: Fault) -> None:
    engine = FakeEngine(weights(0), [fault])
    engine.scramble_weights()
    assert refit(engine).ok
    assert {name for _, name in differing(engine)} == WRONG[fault]
    later = FakeEngine(weights(0), [Fault(fault.kind, fault.name, fault.other, since=2)])
    assert refit(later).ok
    assert not differing(later)


def test_what_was_not_written_is_told() -> None:
    engine = FakeEngine(weights(0), [Fault("dropped", K), Fault("partial", DOWN)])
    engine.scramble_weights()
    refit(engine)
    left = engine.find_unwritten()
    assert set(left) == {(0, QKV), (0, f"{EXPERTS}.w2_weight")}
    assert (left[0, QKV].sentinel_count, left[0, QKV].sentinel_ranges, left[0, QKV].nan_count) == (32, ((64, 96),), 0)
    experts = left[0, f"{EXPERTS}.w2_weight"]
    assert (experts.sentinel_count, experts.nan_count, experts.nan_ranges) == (0, 48, ((48, 96),))


def test_marks_may_not_take_and_names_may_go() -> None:
    engine = FakeEngine(weights(0), [Fault("unmarked", OUT), Fault("renamed", OUT), Fault("renamed", QKV, "other")])
    cold = engine.digest_tensors()
    named = engine.scramble_weights().names
    same = {name for (_, name), entry in engine.digest_tensors().items() if entry.digest == cold[0, name].digest}
    assert same == {OUT, ROTARY}
    assert (0, OUT) in named
    refit(engine)
    assert {name for _, name in cold.keys() ^ engine.digest_tensors().keys()} == {OUT, QKV, "other"}
    none = FakeEngine(weights(0), [Fault("unmarked")]).scramble_weights()
    assert not none.names
    assert set(none.skipped) == {key for key in cold if key[1] != ROTARY}
    spilled = FakeEngine(weights(0), [Fault("spilled")])
    spilled.scramble_weights()
    assert spilled.digest_tensors()[0, ROTARY].digest != cold[0, ROTARY].digest


@pytest.mark.parametrize("kind", ["stale", "scaled"])
def test_a_second_update_may_differ_from_the_first(kind: FaultKind) -> None:
    engine = FakeEngine(weights(0), [Fault(kind, OUT)])
    refit(engine)
    assert not differing(engine)
    refit(engine, 2)
    assert differing(engine, 2) == {(0, OUT)}


def test_what_arrives_is_told_from_what_is_written() -> None:
    engine = ReceivingEngine(weights(0), [Fault("lost", K), Fault("altered", OUT), Fault("dropped", DOWN)])
    refit(engine)
    arrived = {arrival.name: arrival.digest for arrival in engine.read_arrivals().arrived}
    sent = {name: digest(values) for name, values in weights(1).items()}
    assert sent.keys() - arrived.keys() == {K}
    assert {name for name in arrived if arrived[name] != sent[name]} == {OUT}
    refit(engine, 2)
    assert {arrival.digest for arrival in engine.read_arrivals().arrived if arrival.name == OUT} == {arrived[OUT]}


def test_faults_of_ranks_drafts_buckets_and_places() -> None:
    engine = FakeEngine(weights(0), [Fault("rank", OUT)], ranks=2)
    refit(engine)
    assert differing(engine) == {(1, OUT)}
    engine = FakeEngine(weights(0), [Fault("draft")], draft=True)
    refit(engine)
    assert all(name.startswith("draft:") for _, name in differing(engine))
    assert len(differing(engine)) == len(engine._shapes)
    engine = FakeEngine(weights(0), [Fault("bucket")])
    refit(engine, most=600)
    small = engine.digest_tensors()
    refit(engine, most=10000)
    assert any(small[key].digest != entry.digest for key, entry in engine.digest_tensors().items())
    engine = FakeEngine(weights(0), [Fault("moved", OUT)])
    before = engine.digest_tensors()
    refit(engine)
    moved = [name for (_, name), entry in engine.digest_tensors().items() if entry.storage != before[0, name].storage]
    assert moved == [OUT]


def test_answers_may_not_be_true() -> None:
    stopped = FakeEngine(weights(0), [Fault("stops", OUT)])
    assert refit(stopped).ok
    assert {(0, OUT)} <= differing(stopped)
    silent = FakeEngine(weights(0), [Fault("silent")])
    assert refit(silent).ok
    assert differing(silent)
    lying = FakeEngine(weights(0), [Fault("lying")])
    assert not refit(lying).ok
    assert not differing(lying)
    down = FakeEngine(weights(0), [Fault("version", since=2)])
    assert [refit(down, transport="gloo").weight_version for _ in range(2)] == ["1", "0"]
    assert refit(FakeEngine(weights(0))).weight_version is None
    strange = {"model.extra": np.ones(3, np.float32)}
    for faults, good in (((), False), ([Fault("ignores")], True)):
        with TensorExchange() as exchange:
            answer = FakeEngine(weights(0), faults).update_weights(
                sent_buckets.write_buckets(strange, exchange), "reload"
            )
        assert answer.ok is good


def test_logprobs_and_weights_may_disagree() -> None:
    cold = FakeEngine(weights(1)).score([TOKENS])
    path = FakeEngine(weights(0), [Fault("path")])
    refit(path)
    assert not differing(path)
    assert path.score([TOKENS]) != cold
    noisy = FakeEngine(weights(0), [Fault("noisy", since=0)])
    assert noisy.score([TOKENS]) != noisy.score([TOKENS])
    decoding = FakeEngine(weights(0), [Fault("decode")])
    refit(decoding)
    assert decoding.score([TOKENS]) == cold
    assert decoding.score_by_decode([TOKENS], 1) != [cold[0].prompt_logprobs]
    blind = FakeEngine(weights(0), [Fault("blind"), Fault("dropped", OUT)])
    refit(blind)
    assert differing(blind)
    assert blind.score([TOKENS]) == cold


def test_the_prefix_cache_is_stale_until_it_is_reset() -> None:
    cold = FakeEngine(weights(1)).score([TOKENS], decode=3)[0]
    for faults, fresh in (((), True), ([Fault("cache")], False)):
        engine = FakeEngine(weights(0), faults)
        assert engine.score([TOKENS], decode=3)[0].cached_tokens == 0
        refit(engine)
        stale = engine.score([TOKENS], decode=3)[0]
        assert stale.cached_tokens == 7
        assert stale.prompt_logprobs == cold.prompt_logprobs
        assert stale.decode_logprobs != cold.decode_logprobs
        engine.reset_prefix_cache()
        assert (engine.score([TOKENS], decode=3)[0] == cold) is fresh


def test_it_leaks_dies_and_hangs() -> None:
    leak = FakeEngine(weights(0), [Fault("leak")])
    before = leak.memory_bytes()
    refit(leak)
    assert leak.memory_bytes() > before
    with pytest.raises(WorkerDied, match="SIGKILL"):
        FakeEngine(weights(0), [Fault("died", "manifest")]).digest_tensors()
    hung = FakeEngine(weights(0), [Fault("hung", "refit", since=2)])
    refit(hung)
    with pytest.raises(WorkerTimeout):
        refit(hung)


def test_it_loses_its_rotary_cache_in_sleep() -> None:
    for faults, whole in (((), True), ([Fault("sleep")], False)):
        engine = FakeEngine(weights(0), faults)
        before = engine.digest_tensors()
        engine.sleep()
        engine.wake()
        assert (engine.digest_tensors() == before) is whole


@pytest.mark.parametrize("kind", ["scalar", "lazy", "unscaled", "heads", "unscaled buffer"])
def test_state_beside_the_weights_may_be_stale(kind: FaultKind) -> None:
    """Of a sound engine, numbers on the host and scales are those of a cold load after an update and a forward pass."""
    cold = FakeEngine(weights(1), calibrated=True)
    for faults, fresh in (((), True), ([Fault(kind)], False)):
        engine = FakeEngine(weights(0), faults, calibrated=True)
        engine.score([TOKENS])
        refit(engine)
        for each in (engine, cold):
            each._forwards = 0
            each.score([TOKENS])
        digests = [each.digest_tensors()[0, SCALE_BUFFER].digest for each in (engine, cold)]
        assert (engine.read_scalars() == cold.read_scalars() and digests[0] == digests[1]) is fresh


def test_it_keeps_its_memory_in_sleep() -> None:
    engine = FakeEngine(weights(0), [Fault("awake")])
    before = engine.used_memory()
    engine.sleep()
    assert engine.used_memory() == before


def test_what_it_keeps_of_an_image_outlives_an_update_or_is_lost() -> None:
    """A sound engine encodes the image anew; "encoder" answers from the old one, and with "missing" not at all."""
    cold = SeeingFakeEngine(weights(1)).score_image(TOKENS)
    for faults, fresh in (((), True), ([Fault("encoder", since=0)], False)):
        engine = SeeingFakeEngine(weights(0), faults)
        engine.score_image(TOKENS)
        refit(engine)
        assert (engine.score_image(TOKENS) == cold) is fresh
        engine.reset_encoder_cache()
        assert engine.score_image(TOKENS) == cold
    engine = SeeingFakeEngine(weights(0), [Fault("encoder", "missing", since=0)])
    engine.score_image(TOKENS)
    refit(engine)
    with pytest.raises(RemoteError, match="Encoder cache miss"):
        engine.score_image(TOKENS)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("", 0), ("copy", 1), ("places", 5), ("misplaced", 2), ("misrouted", 0), ("unmoved", 0), ("mapless", 0)],
)
def test_copies_of_experts_may_be_wrong(kind: FaultKind, wrong: int) -> None:
    """The loader leaves one, or writes to the places of the start; the balancer exchanges two, moves none, or misroutes."""
    engine = BalancingFakeEngine(weights(0), [Fault(kind, "3", since=0)] if kind else [], copies=2)
    start = engine.digest_expert_slots()
    assert bool(start) is (kind != "mapless")
    engine.rebalance_experts()
    assert bool(count_moves(start, engine.digest_expert_slots())) is (kind not in ("unmoved", "mapless"))
    assert engine.is_misrouted is (kind == "misrouted")
    moved = find_wrong_slots(engine.digest_expert_slots(), start, {})
    refit(engine)
    cold = BalancingFakeEngine(weights(1), copies=2)
    after = find_wrong_slots(engine.digest_expert_slots(), cold.digest_expert_slots(), {})
    assert len(moved if kind == "misplaced" else after) == wrong


def test_every_fault_is_tested_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{kind}"' in source for kind in get_args(FaultKind))
