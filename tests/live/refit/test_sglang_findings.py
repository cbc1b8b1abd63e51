"""What a trial finds on the real SGLang: each fault is done to what is sent to it, or to what lies in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest
import quantization_recipes
from safetensors.numpy import load_file

from ckptcheck.live.runtime.engines.sglang import SglangEngine, SglangOptions
from tests.conftest import needs_engine
from tests.doubles.faults import faulty_engines, flip_bit
from tests.factories import sent_buckets
from tests.factories.live_bench import LiveTrials, Tensors, drop_tensors, messages_by_code

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
AT = "model.layers.1."


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveTrials]:
    needs_engine("sglang")
    with faulty_engines():
        made = LiveTrials(tmp_path_factory.mktemp("bench"), SglangEngine, "qwen3-wide", "tensor")
        yield made
        made.close()


def test_a_sound_sync_is_clean(bench: LiveTrials) -> None:
    for transport in ("tensor", "disk"):
        report = bench.trial(transport=transport, steps=0)
        assert (report.verdict, report.findings) == ("clean", ())


def test_a_name_that_qwen3_moe_does_not_have_is_dropped_in_silence(bench: LiveTrials) -> None:
    strange = f"{AT}mlp.strange.weight"
    found = messages_by_code(bench.trial(extra=strange, steps=0))
    assert found.keys() == {"REF019"}
    assert strange in found["REF019"]


def test_success_is_said_of_what_was_not_sent(bench: LiveTrials) -> None:
    found = messages_by_code(
        bench.trial(drop_tensors(f"{AT}self_attn.o_proj.weight", f"{AT}self_attn.k_proj.weight"), steps=0)
    )
    assert f"the sync did not write 1 tensor: {AT}self_attn.o_proj.weight" in found["REF001"]
    assert "4,096 of 16,384 elements were not written (8,192 to 12,287)" in found["REF001"]
    assert f"{AT}self_attn.k_proj.weight" in found["REF001"]
    assert found["REF009"] == "sync 1 reported success, but the engine holds other weights than were sent"


def test_a_rotary_cache_that_was_touched(bench: LiveTrials) -> None:
    rotary = next(name for _, name in bench.tested.digest_tensors() if name.endswith("cos_sin_cache"))
    found = messages_by_code(bench.trial(after=lambda engine, _: flip_bit(engine, rotary, 5, 20), steps=0))
    flip_bit(bench.tested, rotary, 5, 20)
    assert found.keys() == {"REF005"}
    assert rotary in found["REF005"]


def test_what_becomes_of_a_request_that_runs(bench: LiveTrials) -> None:
    found = messages_by_code(bench.trial(steps=0, pause="in_place"))
    assert found.keys() == {"REF009"}
    assert "Weights were updated, but the cache was not flushed" in found["REF009"]
    assert found["REF009"].endswith("but it wrote all weights")
    for pause in ("retract", "abort", "wait"):
        report = bench.trial(pause=pause, steps=int(pause == "retract"))
        assert not messages_by_code(report), pause
        assert {"REF040"} <= set(report.passed)
    found = messages_by_code(bench.trial(steps=0, pause="retract", under_way={"pause": "abort"}))
    assert found.keys() == {"REF040"}
    assert "the running request (pause retract) ended after" in found["REF040"]
    assert found["REF040"].endswith('of 32 tokens, and the engine gives the finish reason "abort"')
    found = messages_by_code(bench.trial(steps=0, pause="retract", under_way={"version": "another"}))
    assert found.keys() == {"REF040"}
    assert "the new weights computed the running request from token " in found["REF040"]
    assert found["REF040"].endswith("but the engine reports the new version for no token")


def test_what_is_sent_otherwise_after_a_step(bench: LiveTrials) -> None:
    """Several faults in one trial, each in a tensor of its own."""
    expert, other = f"{AT}mlp.experts.1.", "model.layers.0."
    gate, up, doubled = f"{expert}gate_proj.weight", f"{expert}up_proj.weight", f"{other}mlp.gate.weight"
    norm, stale = f"{other}input_layernorm.weight", f"{AT}self_attn.o_proj.weight"

    def changed(tensors: Tensors, number: int) -> Tensors:
        if number == 1:
            return tensors
        nan = np.full_like(tensors[norm], np.nan)
        twice = 2 * tensors[doubled]
        return {**tensors, gate: tensors[up], up: tensors[gate], doubled: twice, norm: nan, stale: bench.held[stale]}

    report = bench.trial(changed)
    found = messages_by_code(report)
    assert found.keys() == {"REF003", "REF004", "REF009"}
    causes = " / ".join(finding.message for finding in report.findings if finding.code == "REF003")
    assert causes.count("after sync 2, 1 tensor differs from a cold load of the same weights: ") == 3
    assert f"{expert}gate_proj+up_proj.weight: gate and up are swapped; the engine holds them in" in causes
    assert f"{doubled}: multiplied by 2" in causes
    assert f"{norm}: " in causes
    assert found["REF004"].startswith(f"after sync 2, 1 tensor still has the values of an earlier step: {stale}")


def test_what_one_of_two_equal_syncs_does(bench: LiveTrials) -> None:
    """A tensor is kept from the second one, and a bit is flipped after it; the third one writes both."""
    norm, lost = "model.norm.weight", f"{AT}self_attn.o_proj.weight"

    def losing(tensors: Tensors, number: int) -> Tensors:
        return drop_tensors(lost)(tensors, number) if number == 2 else tensors

    def flipped(engine: Any, number: int) -> None:
        if number == 2:
            flip_bit(engine, norm, 5, 20)

    found = messages_by_code(bench.trial(losing, flipped))
    assert found["REF003"].startswith("after sync 2, 1 tensor differs from a cold load of the same weights")
    assert norm in found["REF003"]
    assert found["REF004"].startswith(f"after sync 2, 1 tensor still has the values of an earlier step: {lost}")
    assert "in buckets of" in found["REF008"]
    assert lost in found["REF008"]
    assert norm in found["REF008"]


def test_memory_is_released_and_weights_are_pushed_before_the_cache_is_resumed(
    bench: LiveTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As slime does it. On a CPU SGLang frees nothing, but puts its buffers away and back."""
    seen: list[Any] = []
    wake = bench.tested.wake

    def waking(tags: Sequence[str] | None = None) -> None:
        seen.append(tags)
        wake(tags)

    def pushed(_: Any, number: int) -> None:
        seen.append(number)

    monkeypatch.setattr(bench.tested, "wake", waking)
    monkeypatch.setattr(bench.tested, "options", replace(bench.tested.options, sleep_level=2))
    report = bench.trial(after=pushed, sleep_level=2)
    assert report.findings == ()
    assert ("REF018", "the sleep of sglang does nothing on a CPU") in report.skipped
    assert seen == [1, ("weights",), 2, ("kv_cache", "cuda_graph"), 3]
    sleep_skipped, cold = (engine.score([range(9, 60)], decode=4)[0] for engine in (bench.tested, bench.cold))
    assert (*sleep_skipped.prompt_logprobs, *sleep_skipped.decode_logprobs) == pytest.approx(
        (*cold.prompt_logprobs, *cold.decode_logprobs), abs=1e-6
    )

    rotary = next(name for _, name in bench.tested.digest_tensors() if name.endswith("cos_sin_cache"))
    monkeypatch.setattr(bench.tested, "wake", lambda tags=None: (wake(tags), flip_bit(bench.tested, rotary, 5, 20)))
    found = messages_by_code(bench.trial(sleep_level=2))
    said = f"2 tensors changed while the engine slept: {rotary}"  # one cache for all layers
    assert found["REF018"].startswith(said)


def test_an_engine_that_rounds_what_it_is_sent(bench: LiveTrials) -> None:
    bench.tested.restart(bench.first, SglangOptions(dtype="bfloat16"))
    found = messages_by_code(bench.trial(steps=0))
    assert found.keys() == {"REF035"}
    assert "tensors in BF16 that the trainer sends in F32" in found["REF035"]


def test_one_bit_of_packed_int4(bench: LiveTrials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's own checker compares as float32, where large words lose their lowest bits. Last: the engine is another one."""
    source, held = packed(bench.first, tmp_path / "packed")
    bench.tested.restart(source, SglangOptions())
    before = bench.tested.digest_tensors()
    weight = f"{AT}mlp.experts.w2_weight_packed"
    assert before[0, weight].dtype == "I32"
    words = load_file(bench.tested.fetch_tensors([(0, weight)], tmp_path))[f"0/{weight}"].ravel()
    place = int(np.flatnonzero(abs(words.astype(np.int64)) > 1 << 26)[0])
    for bit in (0, 28):
        flip_bit(bench.tested, weight, place, bit)
        after = bench.tested.digest_tensors()
        assert [name for (_, name), entry in after.items() if entry.digest != before[0, name].digest] == [weight]
        flip_bit(bench.tested, weight, place, bit)
    monkeypatch.setattr(bench, "held", held)
    assert not messages_by_code(bench.trial(steps=0))
    found = messages_by_code(bench.trial(after=lambda engine, _: flip_bit(engine, weight, place, 0), steps=0))
    assert found["REF003"].startswith("after sync 1, 1 tensor differs from a cold load of the same weights")
    assert weight in found["REF003"]


def packed(source: Path, folder: Path) -> tuple[Path, Tensors]:
    """Write a checkpoint in W4A16, groups of 32, but for head and routers; return it with its tensors."""
    held: Tensors = {}
    for name, values in sent_buckets.read_weights(source).items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            held[name] = values
            continue
        stored = packers.pack_quantized(values)
        scale = packers.from_bf16(stored["weight_scale"][1])
        held[f"{module}.weight_packed"] = stored["weight_packed"][1].astype(np.int32)
        held |= {f"{module}.weight_scale": scale, f"{module}.weight_shape": stored["weight_shape"][1].astype(np.int64)}
    sent_buckets.write_checkpoint(source, held, folder)
    config = json.loads((source / "config.json").read_text())
    scheme = quantization_recipes.integer(4)
    recipe = quantization_recipes.compressed_tensors("pack-quantized", ("", scheme, None, packers.pack_quantized))
    config["quantization_config"] = recipe.config | {"ignore": ["lm_head", r"re:.*mlp\.gate$"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, held
