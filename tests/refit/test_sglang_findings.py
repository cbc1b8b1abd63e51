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
import sent
from bench import Bench, Tensors, told, without
from conftest import needs_engine
from safetensors.numpy import load_file

from ckptcheck.engines import sglang
from ckptcheck.engines.sglang import SglangEngine, SglangOptions

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
AT = "model.layers.1."


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    needs_engine("sglang")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sglang, "MODULE", Path(__file__).parent.parent / "far" / "checking_sglang.py")
        made = Bench(tmp_path_factory.mktemp("bench"), SglangEngine, "qwen3-wide", "tensor")
        yield made
        made.close()


def test_a_sound_sync_is_clean(bench: Bench) -> None:
    for transport in ("tensor", "disk"):
        report = bench.trial(transport=transport, steps=0)
        assert (report.verdict, report.findings) == ("clean", ())


def test_a_name_that_qwen3_moe_does_not_have_is_dropped_in_silence(bench: Bench) -> None:
    strange = f"{AT}mlp.strange.weight"
    found = told(bench.trial(extra=strange, steps=0))
    assert found.keys() == {"REF019"}
    assert strange in found["REF019"]


def test_success_is_said_of_what_was_not_sent(bench: Bench) -> None:
    found = told(bench.trial(without(f"{AT}self_attn.o_proj.weight", f"{AT}self_attn.k_proj.weight"), steps=0))
    assert f"1 tensor was not written by the sync: {AT}self_attn.o_proj.weight" in found["REF001"]
    assert "4,096 of 16,384 elements were not written (8,192 to 12,287)" in found["REF002"]
    assert f"{AT}self_attn.k_proj.weight" in found["REF002"]
    assert found["REF009"] == "sync 1 reported success, and the engine holds other weights than were sent"


def test_a_rotary_cache_that_was_touched(bench: Bench) -> None:
    rotary = next(name for _, name in bench.tested.manifest() if name.endswith("cos_sin_cache"))
    found = told(bench.trial(after=lambda engine, _: engine.poke(rotary, 5, 20), steps=0))
    bench.tested.poke(rotary, 5, 20)
    assert found.keys() == {"REF005"}
    assert rotary in found["REF005"]


def test_what_becomes_of_a_request_that_runs(bench: Bench) -> None:
    found = told(bench.trial(steps=0, pause="in_place"))
    assert found.keys() == {"REF009"}
    assert "Weights were updated, but the cache was not flushed" in found["REF009"]
    assert found["REF009"].endswith("and all weights were written")
    for pause in ("retract", "abort", "wait"):
        report = bench.trial(pause=pause, steps=int(pause == "retract"))
        assert not told(report), pause
        assert {"REF040", "REF041"} <= set(report.passed)
    found = told(bench.trial(steps=0, pause="retract", under_way={"pause": "abort"}))
    assert found.keys() == {"REF040"}
    assert "the request that ran (pause retract) ended after" in found["REF040"]
    assert found["REF040"].endswith("of 32 tokens, and the engine calls it abort")
    found = told(bench.trial(steps=0, pause="retract", under_way={"version": "another"}))
    assert found.keys() == {"REF041"}
    assert "are of the new weights from number " in found["REF041"]
    assert found["REF041"].endswith("and the engine says so of none")


def test_what_is_sent_otherwise_after_a_step(bench: Bench) -> None:
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

    found = told(bench.trial(changed))
    assert found.keys() == {"REF003", "REF004", "REF009"}
    assert found["REF003"].startswith("after sync 2 3 tensors differ from a cold load of the same weights: ")
    assert found["REF004"].startswith(f"after sync 2 1 tensor is still of an earlier step: {stale}")


def test_what_one_of_two_equal_syncs_does(bench: Bench) -> None:
    """A tensor is kept from the second one, and a bit is flipped after it; the third one writes both."""
    norm, lost = "model.norm.weight", f"{AT}self_attn.o_proj.weight"

    def losing(tensors: Tensors, number: int) -> Tensors:
        return without(lost)(tensors, number) if number == 2 else tensors

    def flipped(engine: Any, number: int) -> None:
        if number == 2:
            engine.poke(norm, 5, 20)

    found = told(bench.trial(losing, flipped))
    assert found["REF003"].startswith("after sync 2 1 tensor differs from a cold load of the same weights")
    assert norm in found["REF003"]
    assert found["REF004"].startswith(f"after sync 2 1 tensor is still of an earlier step: {lost}")
    assert "in buckets of" in found["REF008"]
    assert lost in found["REF008"]
    assert norm in found["REF008"]


def test_memory_is_released_and_weights_are_pushed_before_the_cache_is_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
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
    awake, cold = (engine.score([range(9, 60)], decode=4)[0] for engine in (bench.tested, bench.cold))
    assert (*awake.prompt, *awake.decode) == pytest.approx((*cold.prompt, *cold.decode), abs=1e-6)

    rotary = next(name for _, name in bench.tested.manifest() if name.endswith("cos_sin_cache"))
    monkeypatch.setattr(bench.tested, "wake", lambda tags=None: (wake(tags), bench.tested.poke(rotary, 5, 20)))
    found = told(bench.trial(sleep_level=2))
    said = f"2 tensors are not what they were before the engine slept: {rotary}"  # one cache for all layers
    assert found["REF018"].startswith(said)


def test_an_engine_that_rounds_what_it_is_sent(bench: Bench) -> None:
    bench.tested.restart(bench.first, SglangOptions(dtype="bfloat16"))
    found = told(bench.trial(steps=0))
    assert found.keys() == {"REF035"}
    assert "tensors are kept in BF16 and sent in F32" in found["REF035"]


def test_one_bit_of_packed_int4_which_sglang_takes_for_equal(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checker compares as float32, in which int32 words above 2^24 lose their lowest bits. Last: the engine is another one."""
    source, held = packed(bench.first, tmp_path / "packed")
    bench.tested.restart(source, SglangOptions())
    before = bench.tested.manifest()
    weight = f"{AT}mlp.experts.w2_weight_packed"
    assert before[0, weight].dtype == "I32"
    words = load_file(bench.tested.fetch([(0, weight)], tmp_path))[f"0/{weight}"].ravel()
    place = int(np.flatnonzero(abs(words.astype(np.int64)) > 1 << 26)[0])
    for bit, same in ((0, True), (28, False)):
        assert bench.tested.check("snapshot")["ok"]
        bench.tested.poke(weight, place, bit)
        assert bench.tested.check("compare")["ok"] is same
        after = bench.tested.manifest()
        assert [name for (_, name), entry in after.items() if entry.digest != before[0, name].digest] == [weight]
        bench.tested.poke(weight, place, bit)
    monkeypatch.setattr(bench, "held", held)
    assert not told(bench.trial(steps=0))
    found = told(bench.trial(after=lambda engine, _: engine.poke(weight, place, 0), steps=0))
    assert found["REF003"].startswith("after sync 1 1 tensor differs from a cold load of the same weights")
    assert weight in found["REF003"]


def packed(source: Path, folder: Path) -> tuple[Path, Tensors]:
    """Write a checkpoint in W4A16, groups of 32, but for head and routers; return it with its tensors."""
    held: Tensors = {}
    for name, values in sent.weights(source).items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            held[name] = values
            continue
        stored = packers.pack_quantized(values)
        scale = packers.from_bf16(stored["weight_scale"][1])
        held[f"{module}.weight_packed"] = stored["weight_packed"][1].astype(np.int32)
        held |= {f"{module}.weight_scale": scale, f"{module}.weight_shape": stored["weight_shape"][1].astype(np.int64)}
    sent.checkpoint(source, held, folder)
    config = json.loads((source / "config.json").read_text())
    scheme = quantization_recipes.integer(4)
    recipe = quantization_recipes.compressed_tensors("pack-quantized", ("", scheme, None, packers.pack_quantized))
    config["quantization_config"] = recipe.config | {"ignore": ["lm_head", r"re:.*mlp\.gate$"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, held
