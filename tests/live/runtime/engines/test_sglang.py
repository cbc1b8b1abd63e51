"""The real SGLang on CPU: what it holds after an update, what it says of it, and what it computes with.

One process serves the tests in the order of the file; the last one kills it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import live
import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines import process_group
from ckptcheck.live.runtime.engines.base import TensorDigests
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.engines.sglang import SglangEngine, SglangOptions
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import WorkerDied, WorkerTimeout
from ckptcheck.live.runtime.process.exchange import TensorExchange
from tests.conftest import needs, needs_engine
from tests.doubles.faults import faulty_engines, flip_bit
from tests.factories import sent_buckets
from tests.live.runtime.engines import served_models as tiny
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
TOKENS = [8 + 7 * place % 499 for place in range(60)]
KEY, DOWN = "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.experts.2.down_proj.weight"
QKV, W2 = "model.layers.1.self_attn.qkv_proj.weight", "model.layers.0.mlp.experts.w2_weight"
ROTARY = "model.layers.0.self_attn.rotary_emb.cos_sin_cache"
GREEDY = Sampling(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return live.write("qwen3-wide", tmp_path_factory.mktemp("checkpoints") / "qwen3-wide")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "sglang.log"


@pytest.fixture(scope="module")
def engine(source: Path, log: Path) -> Iterator[SglangEngine]:
    needs_engine("sglang")
    switches = Switches(prefix_cache=True, chunk=64, compilation="eager", text=True)
    options = SglangOptions(switches=switches, extra_arguments={"log_level": "warning"})
    with faulty_engines(), SglangEngine(source, options, log=log) as running:
        yield running


@pytest.fixture(scope="module")
def weights(source: Path) -> dict[str, np.ndarray]:
    return sent_buckets.perturb_weights(sent_buckets.read_weights(source))


def differing(one: TensorDigests, other: TensorDigests) -> set[str]:
    return {name for rank, name in one if one[rank, name].digest != other[rank, name].digest}


def far(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference; NaN is far from everything."""
    assert len(one) == len(other)
    return max(abs(a - b) if a == a and b == b else 1e9 for a, b in zip(one, other, strict=True))


def without(tensors: Mapping[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: values for name, values in tensors.items() if name not in names}


def by_gloo(engine: SglangEngine, weights: Mapping[str, np.ndarray], exchange: TensorExchange, key: str) -> None:
    python = needs_engine("sglang").python
    with WorkerClient(python, DOUBLES / "gloo_sender.py") as sender, ThreadPoolExecutor(1) as threads:
        plan = sent_buckets.write_buckets(weights, exchange, 100_000)
        place = process_group.create_rendezvous(1, key, timeout=60)
        parcels = msgspec.to_builtins(plan)
        sending = threads.submit(sender.call, "send", timeout=120, group=place, parcels=parcels)
        answer = engine.update_weights(process_group.address_buckets(plan, place), "gloo", timeout=120)
        sending.result()
        assert answer.ok, answer.message


def test_schedulers_have_what_the_worker_imported_and_idle_threads_sleep(engine: SglangEngine) -> None:
    """Both are what a start on two cores spends its time with. SGLang ends the copy with the engine, so a restart has none."""
    scheduler, *_ = engine.scheduler_pids()
    parent = Path(f"/proc/{scheduler}/stat").read_text().rpartition(")")[2].split()[1]
    # a new Python would have another command
    assert b"\0ckptcheck_worker\0" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert b"OMP_WAIT_POLICY=PASSIVE" in Path(f"/proc/{scheduler}/environ").read_bytes().split(b"\0")


def test_every_route_is_a_cold_load_and_what_transformers_computes(
    engine: SglangEngine, source: Path, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    needs("torch", "transformers")
    assert not engine.ignored_switches
    start = engine.digest_tensors()
    scrambled = engine.scramble_weights()
    assert scrambled.names == {key for key, entry in start.items() if entry.kind == "parameter"}
    assert set(engine.find_unwritten()) == scrambled.names
    found = []
    with TensorExchange() as exchange:
        for number, route in enumerate((transport.name for transport in engine.transports), 1):
            engine.scramble_weights()
            if route == "gloo":
                by_gloo(engine, weights, exchange, "first")
            else:
                answer = engine.update_weights(sent_buckets.write_buckets(weights, exchange, 100_000), route)
                assert answer.ok, answer.message
                assert answer.weight_version == str(number)
            assert not engine.find_unwritten(), route
            found.append(engine.digest_tensors())
    assert all(each == found[0] for each in found), "by another route, or in another place"
    after = found[0]
    assert {key: entry.storage for key, entry in after.items()} == {key: entry.storage for key, entry in start.items()}
    assert after[0, "model.norm.weight"].digest == digest(weights["model.norm.weight"])
    score = engine.score([TOKENS], decode=4)[0]
    step = sent_buckets.write_checkpoint(source, weights, tmp_path / "step")
    truth = tiny.logprobs(str(step), TOKENS)
    assert far(score.prompt_logprobs, truth) < 2e-5
    assert far(engine.score_by_decode([TOKENS], 50)[0], truth[49:]) < 2e-5
    assert far(score.decode_logprobs, tiny.logprobs(str(step), [*TOKENS, *score.decoded_tokens])[-4:]) < 2e-5
    full = load_file(engine.score_full_vocab([TOKENS], tmp_path))["0"]
    assert full.shape == (59, 512)
    assert far([full[place, token] for place, token in enumerate(TOKENS[1:])], truth) < 2e-5
    engine.restart(step)
    assert not differing(after, engine.digest_tensors())


def test_what_was_not_sent_is_told_by_element_and_the_call_says_success(
    engine: SglangEngine, source: Path, log: Path
) -> None:
    partial = without(sent_buckets.read_weights(source), KEY, DOWN)
    strange = {"model.layers.0.mlp.strange.weight": np.ones(4, np.float32)}
    scrambled = engine.scramble_weights().names
    assert set(engine.find_unwritten()) == scrambled
    assert scrambled == {key for key, entry in engine.digest_tensors().items() if entry.kind == "parameter"}
    before = log.stat().st_size
    with TensorExchange() as exchange:
        answer = engine.update_weights(sent_buckets.write_buckets(partial | strange, exchange), "tensor")
    assert answer.ok, "SGLang has found out that tensors are missing or unknown"
    assert b"strange" not in log.read_bytes()[before:]
    left = engine.find_unwritten()
    assert set(left) == {(0, QKV), (0, W2)}
    assert left[0, QKV].sentinel_ranges == ((128 * 64, 192 * 64),)  # the rows of k, below 128 of q
    assert left[0, W2].sentinel_ranges == ((2 * 64 * 64, 3 * 64 * 64),)


@pytest.mark.parametrize("pause", SglangEngine.pause_modes)
def test_requests_that_run_while_weights_change(
    engine: SglangEngine, weights: dict[str, np.ndarray], pause: str
) -> None:
    with TensorExchange() as exchange:
        parcels = sent_buckets.write_buckets(weights, exchange)
        engine.reset_prefix_cache()
        engine.weight_version("before")
        engine.scramble_weights()
        done = engine.update_inflight(
            [TOKENS[:20]], GREEDY, parcels, transport="tensor", pause=pause, clear_cache=True, after=4,
            version=f"after-{pause}",
        )  # fmt: skip
    assert not engine.find_unwritten(), "the weights are written, whatever is said of it"
    (response,) = done.generations
    seen = list(dict.fromkeys(response.weight_versions))
    if pause == "in_place":
        assert not done.update.ok
        assert "Weights were updated, but the cache was not flushed" in done.update.message
    else:
        assert done.update.ok, done.update.message
    if pause == "abort":
        assert response.finish_reason == "abort"
        assert 4 <= len(response.tokens) < 16
        assert seen == ["before"]
    else:
        assert (response.finish_reason, len(response.tokens)) == ("length", 16)
        assert seen == (["before"] if pause == "wait" else ["before", f"after-{pause}"])


def test_a_rotary_cache_that_was_touched_is_not_repaired(engine: SglangEngine, weights: dict[str, np.ndarray]) -> None:
    with TensorExchange() as exchange:
        assert engine.update_weights(sent_buckets.write_buckets(weights, exchange), "tensor").ok
        sound = engine.digest_tensors()
        before = engine.score([TOKENS])[0].prompt_logprobs
        flip_bit(engine, ROTARY, 40, 24)  # an exponent bit of a cosine
        assert engine.update_weights(sent_buckets.write_buckets(weights, exchange), "tensor").ok
        assert differing(sound, engine.digest_tensors()) == {
            ROTARY,
            ROTARY.replace("0", "1"),
        }  # one cache for all layers
        assert far(engine.score([TOKENS])[0].prompt_logprobs, before) > 1e-3
        flip_bit(engine, ROTARY, 40, 24)
    assert not differing(sound, engine.digest_tensors())


def test_the_cache_is_flushed_with_an_update_unless_it_is_told_not_to(
    engine: SglangEngine, source: Path, weights: dict[str, np.ndarray]
) -> None:
    engine.reset_prefix_cache()
    with TensorExchange() as exchange:
        assert engine.update_weights(
            sent_buckets.write_buckets(sent_buckets.read_weights(source), exchange), "tensor"
        ).ok
        assert engine.score([TOKENS], decode=1)[0].cached_tokens == 0
        assert engine.update_weights(
            sent_buckets.write_buckets(sent_buckets.perturb_weights(weights, 0.2), exchange), "tensor", flush=False
        ).ok
        stale = engine.score([TOKENS], decode=1)[0]
        engine.reset_prefix_cache()
        fresh = engine.score([TOKENS], decode=1)[0]
    assert stale.cached_tokens > 50
    assert fresh.cached_tokens == 0
    assert far(stale.decode_logprobs, fresh.decode_logprobs) > 1e-3
    assert far(stale.prompt_logprobs, fresh.prompt_logprobs) < 1e-6, "prompt logprobs pass the cache by"


def test_outputs_of_a_vision_tower_stay_whatever_is_flushed(
    engine: SglangEngine, weights: dict[str, np.ndarray]
) -> None:
    """The evidence of an entry of known_issues.toml: an image of before an update is served from the old tower."""
    engine._call_ranks("see_image")
    with TensorExchange() as exchange:
        assert engine.update_weights(sent_buckets.write_buckets(weights, exchange), "tensor", flush=True).ok
    engine.reset_prefix_cache()
    assert engine._call_ranks("remembered_images") == [[7]]


def test_it_generates_as_asked(engine: SglangEngine) -> None:
    sampled = Sampling(temperature=0.7, max_tokens=5, seed=3)
    first, second = (engine.generate([TOKENS[:9], TOKENS[:5]], sampled) for _ in range(2))
    assert [each.tokens for each in first] == [each.tokens for each in second]
    scored = engine.score([[*TOKENS[:9], *first[0].tokens]])[0].prompt_logprobs
    assert far(first[0].logprobs, scored[8:]) < 2e-5, "not those of the model, but of what was sampled from"
    engine.reset_prefix_cache()
    salted = [engine.generate([TOKENS[:40]], GREEDY, salt=salt)[0].cached_tokens for salt in ("x", "x", "y")]
    assert salted[0] == salted[2] == 0
    assert salted[1] > 30
    ended = engine.force_decode(TOKENS[:20], [9, 9, 2, 9])
    assert (ended.tokens, ended.finish_reason) == ((9, 9, 2), "stop")
    routes = engine.expert_routing(TOKENS[:7])
    assert [len(layer) for layer in routes] == [7, 7]
    assert all(len(set(chosen)) == 2 for layer in routes for chosen in layer)


def test_sleep_does_nothing_on_a_cpu_and_updates_take_no_memory(
    engine: SglangEngine, weights: dict[str, np.ndarray]
) -> None:
    assert engine.info.facts["sleep"] == "False"
    before = engine.digest_tensors()
    engine.sleep()
    engine.wake()
    assert engine.digest_tensors() == before
    with pytest.raises(CkptcheckError, match="was started to sleep at level 1, not 2"):
        engine.sleep(2)
    with TensorExchange() as exchange:
        assert engine.update_weights(sent_buckets.write_buckets(weights, exchange), "flattened_bucket").ok
        held = engine.memory_bytes()
        for _ in range(5):
            engine.update_weights(sent_buckets.write_buckets(weights, exchange), "flattened_bucket")
    assert engine.memory_bytes() - held < 64 << 20
    assert not engine.find_unwritten()


def test_a_flipped_bit_is_seen_and_fetched(
    engine: SglangEngine, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with TensorExchange() as exchange:
        engine.update_weights(sent_buckets.write_buckets(weights, exchange), "tensor")
    before = engine.digest_tensors()
    flip_bit(engine, W2, 2 * 64 * 64 + 100, 3)
    assert differing(before, engine.digest_tensors()) == {W2}
    held = load_file(engine.fetch_tensors([(0, W2)], tmp_path))[f"0/{W2}"]
    assert np.flatnonzero(held[2] != weights[DOWN]).tolist() == [100]


def test_a_route_or_a_shape_that_sglang_has_not(engine: SglangEngine, weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(CkptcheckError, match="SGLang takes no weights by reload here"):
        engine.update_weights([], "reload")
    scheduler, *_ = engine.scheduler_pids()
    files = Path(f"/proc/{scheduler}/maps").read_text()
    assert ("/loads_" in files, "/dev/shm/sglang_loads_" in files) == (True, False)  # SGLang never removes the latter
    os.kill(scheduler, signal.SIGSTOP)
    assert engine.weight_version()  # the process that takes requests, of one that is no more
    os.kill(scheduler, signal.SIGCONT)
    bad = {**weights, "model.norm.weight": np.ones(32, np.float32)}
    with TensorExchange() as exchange, time_budget(60), pytest.raises(WorkerDied) as died:
        engine.update_weights(sent_buckets.write_buckets(bad, exchange), "tensor")
    assert "Attempted to load weight" in (died.value.hint or "") + " ".join(died.value.log_tail)
    assert not Path(f"/proc/{scheduler}").exists()


def test_a_scheduler_that_hangs(source: Path) -> None:
    needs_engine("sglang")
    with SglangEngine(source) as engine:
        scheduler, *_ = engine.scheduler_pids()
        os.kill(scheduler, signal.SIGSTOP)
        with time_budget(3), pytest.raises(WorkerTimeout, match="did not answer in time when asked to score"):
            engine.score([TOKENS])
    assert not Path(f"/proc/{scheduler}").exists()
