"""What a diagnosis says, word for word; names of Megatron, stacked experts, shapes, dtypes and malformed input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from ckptcheck.compare.diagnosis import AttentionGeometry, DiagnosisInput, TensorBits, Verdict, diagnose
from tests.compare.diagnosis.fault_matrix import sides_of, sync_of
from tests.compare.diagnosis.sharded import HEAD_DIM, Layout, to_bits, to_megatron

Readers = dict[str, Callable[[], TensorBits]]
TWO = Layout(tp=2, pp=2)


def bits(*shape: int, dtype: str = "F32", seed: int = 0) -> TensorBits:
    return TensorBits(dtype, to_bits(dtype, np.random.default_rng(seed).normal(0, 1, shape)))


def one(
    expected: TensorBits, actual: TensorBits, name: str = "model.layers.0.self_attn.o_proj.weight", **more: object
) -> list[Verdict]:
    return diagnose(DiagnosisInput({name: lambda: expected}, {name: lambda: actual}, **more))  # type: ignore[arg-type]


def changed(tensor: TensorBits, change: Callable[[np.ndarray], np.ndarray]) -> TensorBits:
    return TensorBits(tensor.dtype, np.ascontiguousarray(change(tensor.patterns)))


@pytest.mark.parametrize(
    ("element", "flips", "ending", "hint"),
    [
        (
            0x3F800000,
            1,
            "one bit differs: bit 0 of element [2, 3], one unit in the last place",
            "trained or computed apart",
        ),
        (
            0x3F7FFFFF,
            0x00FFFFFF,
            "elements differ by one unit in the last place",
            "trained or computed apart",
        ),
        (0x3F800000, 2, "one bit differs: bit 1 of element [2, 3]", "either side may hold the damaged bit"),
    ],
)
def test_one_unit_in_the_last_place_is_no_damaged_bit(element: int, flips: int, ending: str, hint: str) -> None:
    def put(value: int) -> Callable[[np.ndarray], np.ndarray]:
        def change(patterns: np.ndarray) -> np.ndarray:
            found = patterns.copy()
            found[2, 3] = value
            return found

        return change

    (verdict,) = one(changed(bits(8, 8), put(element)), changed(bits(8, 8), put(element ^ flips)))
    assert verdict.sentence.removesuffix(", as another rounding makes it").endswith(ending)
    assert hint in verdict.evidence


def test_lost_values_cannot_be_undone() -> None:
    (verdict,) = one(bits(8, 8), changed(bits(8, 8), lambda patterns: patterns * 0))
    assert verdict.evidence.startswith("this side lost values")
    (verdict,) = one(changed(bits(8, 8), lambda patterns: patterns * 0), bits(8, 8))
    assert verdict.sentence.endswith("every element of the other side is zero")
    assert verdict.evidence.startswith("the other side lost its values")


@pytest.mark.parametrize(("units", "causes"), [(1, ("last-place",)), (2, ("unknown",))])
def test_two_trainings_one_unit_apart_are_another_rounding(units: int, causes: tuple[str, ...]) -> None:
    away = np.random.default_rng(1).integers(-1, 2, (32, 32)) * units
    change = partial(np.add, away.astype(np.uint32))
    (verdict,) = one(bits(32, 32), changed(bits(32, 32), change))
    assert verdict.causes == causes


def test_gate_and_up_swapped_under_both_names() -> None:
    sync = sync_of(TWO)
    sides = sides_of(sync.new, sync.export(fc1="swapped"), TWO)
    called = {
        f"model.layers.{layer}.mlp.{part}_proj.weight": f"decoder.layers.{layer}.mlp.linear_fc1.weight"
        for layer in range(4)
        for part in ("gate", "up")
    }
    (verdict,) = diagnose(DiagnosisInput(sides.expected, sides.actual, geometry=sides.geometry, other_names=called))
    assert verdict.sentence == "4 of 4 linear_fc1 (mlp.gate_proj+up_proj.weight): gate and up are swapped"
    assert verdict.causes == ("gate-up-swapped",)
    assert verdict.confidence == "exact"
    assert verdict.evidence == "undoing this gives the values of the other side, bit for bit"
    assert len(verdict.tensors) == 8


def test_pipeline_offset() -> None:
    sync = sync_of(TWO)
    first, second = diagnose(sides_of(sync.new, sync.export(layers=lambda _, at: at), TWO))
    assert first.sentence == (
        "24 of 48 tensors (input_layernorm.weight, mlp.down_proj.weight, mlp.gate_proj.weight and 9 more), layers 0-1: "
        "layers 0-1 equal layers 2-3: pipeline offset -2"
    )
    assert second.sentence == (
        "24 of 48 tensors (input_layernorm.weight, mlp.down_proj.weight, mlp.gate_proj.weight and 9 more), layers 2-3: missing"
    )
    assert all(verdict.evidence.startswith("this side lost values") for verdict in (first, second))


def test_experts_permuted() -> None:
    layout = Layout(moe=True, ep=2)
    sync = sync_of(layout)
    (verdict,) = diagnose(sides_of(sync.new, sync.export(experts=lambda ep, at: (1 - ep) * 2 + at), layout))
    assert verdict.sentence.endswith("experts are permuted: 0 is 2, 1 is 3, 2 is 0, 3 is 1")


def test_one_shard_left_behind() -> None:
    new, old = bits(64, 32), bits(64, 32, seed=1)
    actual = TensorBits("F32", np.concatenate([new.patterns[:32], old.patterns[32:]]))
    name = "model.layers.0.self_attn.o_proj.weight"
    sides = DiagnosisInput({name: lambda: new}, {name: lambda: actual}, {name: lambda: old})
    (verdict,) = diagnose(sides)
    assert verdict.sentence == (
        f"{name}: rows 32-63 of 64 (the shard of rank 1 of 2) still hold the previous version, the rest is new"
    )


def test_megatron_on_both_sides() -> None:
    """Q, K and V fused per KV group: plain instead of interleaved, and a fault in the values alone."""
    layout = Layout(heads=8, kv_heads=4)
    sync = sync_of(layout)
    whole = to_megatron(sync.new, layout)
    geometry = AttentionGeometry(8, 4, HEAD_DIM)
    expected = {name: lambda x=x: TensorBits("BF16", x) for name, x in whole.items() if "linear_qkv.weight" in name}
    plain, zeroed = {}, {}
    for layer, name in enumerate(expected):
        q, k, v = (sync.new[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv")
        stacked = np.concatenate([q, k, v])
        plain[name] = lambda x=stacked: TensorBits("BF16", x)
        without = whole[name].copy()
        without.reshape(4, -1, 32)[:, -HEAD_DIM:] = 0
        zeroed[name] = lambda x=without: TensorBits("BF16", x)
    (verdict,) = diagnose(DiagnosisInput(expected, plain, geometry=geometry))  # type: ignore[arg-type]
    assert verdict.sentence == (
        "4 of 4 self_attention.linear_qkv.weight: Q, K and V are stacked plainly; they are expected interleaved per KV group"
    )
    (verdict,) = diagnose(DiagnosisInput(expected, zeroed, geometry=geometry))  # type: ignore[arg-type]
    assert verdict.sentence == "4 of 4 self_attention.linear_qkv.weight (its v): every element is zero"


@pytest.mark.parametrize("lies", [False, True], ids=["rows", "columns"])
def test_stacked_experts(lies: bool) -> None:
    """[experts, 2 x width, hidden] and gpt-oss's [experts, hidden, 2 x width]."""
    experts, width, hidden = 3, 24, 32
    fused = np.random.default_rng(0).normal(0, 1, (experts, 2 * width, hidden))
    swapped = np.concatenate([fused[:, width:], fused[:, :width]], axis=1)
    swapped[2] = fused[0]
    if lies:
        fused, swapped = fused.swapaxes(1, 2), swapped.swapaxes(1, 2)
    down = bits(*((experts, width, hidden) if lies else (experts, hidden, width)))
    at = "model.layers.0.mlp.experts."
    expected: Readers = {
        f"{at}gate_up_proj": lambda: TensorBits("F32", to_bits("F32", fused)),
        f"{at}down_proj": lambda: down,
    }
    actual: Readers = {
        f"{at}gate_up_proj": lambda: TensorBits("F32", to_bits("F32", swapped)),
        f"{at}down_proj": lambda: down,
    }
    first, second = diagnose(DiagnosisInput(expected, actual))
    assert {first.sentence, second.sentence} == {
        "2 of 3 mlp.experts.gate_up_proj: gate and up are swapped",
        f"{at}gate_up_proj[2]: expert 2 equals expert 0: expert offset 2",
    }


SHAPES = {
    "shard": (lambda x: x[32:], "tp-shard"),
    "columns of a rank": (lambda x: x[:, :16], "tp-shard"),
    "wrong axis": (lambda x: np.concatenate(np.split(x, 2, axis=1)), "tp-axis"),
    "transposed": (lambda x: x.T, "transposed"),
    "reshaped": (lambda x: x.reshape(8, -1), "shape"),
    "rows added": (lambda x: np.concatenate([x, x[:3]]), "rows-added"),
    "rows missing": (lambda x: x[:-5], "rows-missing"),
    "other": (lambda x: x[3:-5, 1:], "unknown"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case: str) -> None:
    change, code = SHAPES[case]
    tensor = bits(64, 32)
    (verdict,) = one(tensor, changed(tensor, change))
    assert verdict.causes == (code,)


def test_value_head_in_a_tensor_parallel_shape() -> None:
    tensor = bits(1, 64)
    (verdict,) = one(tensor, changed(tensor, lambda x: x.reshape(8, 8)), "score.weight")
    assert verdict.causes == ("tp-axis",)


@pytest.mark.parametrize(("dtype", "lossy"), [("BF16", True), ("F16", True), ("F64", False)])
def test_stored_in_another_dtype(dtype: str, lossy: bool) -> None:
    from ckptcheck.compare.matching.cast import encode
    from ckptcheck.values.dtypes import decode

    tensor = bits(32, 32)
    verdicts = one(tensor, TensorBits(dtype, encode(dtype, decode("F32", tensor.patterns))))
    assert [verdict.causes for verdict in verdicts] == ([("round-trip",)] if lossy else [])
    if lossy:
        assert verdicts[0].sentence.endswith(f"stored as {dtype} instead of F32, and rounded")


def test_another_dtype_and_another_fault() -> None:
    from ckptcheck.compare.matching.cast import encode
    from ckptcheck.values.dtypes import decode

    tensor = bits(32, 32)
    (verdict,) = one(tensor, TensorBits("BF16", encode("BF16", decode("F32", tensor.patterns.T))))
    assert verdict.causes == ("transposed",)


MALFORMED = [
    TensorBits("F32", np.zeros((), np.uint32)), TensorBits("F32", np.zeros((0,), np.uint32)), TensorBits("F32",
    np.zeros((0, 4), np.uint32)),
    TensorBits("F32", np.ones((2, 0, 3), np.uint32)), TensorBits("I64", np.arange(9, dtype=np.uint64).reshape(3, 3)),
    TensorBits("F4", np.arange(16, dtype=np.uint8).reshape(4, 4)), TensorBits("BOOL", np.ones(4, np.uint8)),
    TensorBits("F8_E8M0", np.arange(64, dtype=np.uint8).reshape(8, 8)), TensorBits("F32", np.full((4, 4), 0x7FC00001, np.uint32)),
    TensorBits("F8_E4M3", np.arange(256, dtype=np.uint8).reshape(16, 16)), TensorBits("NEW", np.arange(8, dtype=np.uint8)),
    TensorBits("BF16", np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)), TensorBits("F16", np.arange(64, dtype=np.uint16)),
    TensorBits("F64", np.arange(64, dtype=np.uint64).reshape(4, 4, 4)), bits(1, 1), bits(3), bits(3, 5, dtype="BF16"),
]  # fmt: skip
NAMES = ("model.layers.0.self_attn.q_proj.weight", "x", "layers.1.mlp.experts.2.gate_up_proj", "model.norm.weight",
         "lm_head.weight",          "decoder.layers.3.self_attention.linear_qkv.weight", "layers.1.mlp.experts.w13")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_malformed_input_is_no_exception(name: str) -> None:
    for expected in MALFORMED:
        for actual in MALFORMED:
            for verdict in one(expected, actual, name, geometry=AttentionGeometry(3, 2, 7)):
                assert verdict.sentence
                assert verdict.tensors
        assert one(expected, expected, name) == []


def test_only_some_of_many_are_looked_at() -> None:
    weights = {
        f"model.layers.{layer}.{name}.weight": bits(8, 8, seed=layer) for layer in range(40) for name in ("a", "b")
    }
    expected: Readers = {name: lambda tensor=tensor: tensor for name, tensor in weights.items()}
    actual: Readers = {name: lambda tensor=tensor: changed(tensor, lambda x: x * 0) for name, tensor in weights.items()}
    first, last = diagnose(DiagnosisInput(expected, actual), most=10)
    assert first.sentence.startswith("5 of 40 a.weight, 5 of 40 b.weight, layers 0,8,16,24,32: every element is zero")
    assert last.causes == ("unexamined",)
    assert last.sentence == "70 further differences not examined"


def test_trouble_of_a_reader_is_passed_on() -> None:
    def broken() -> TensorBits:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        diagnose(DiagnosisInput({"x": broken}, {"x": broken}))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_rounding_to_8_bits(dtype: str) -> None:
    """Every number comes back; what lies in the middle of two goes to the even one."""
    from ckptcheck.compare.matching.cast import encode
    from ckptcheck.values.dtypes import FORMATS, decode

    limit = FORMATS[dtype].limit or 0
    patterns = np.arange(limit, dtype=np.uint8)
    numbers = decode(dtype, patterns).astype(np.float32)
    assert np.array_equal(encode(dtype, numbers), patterns)
    assert np.array_equal(encode(dtype, -numbers), patterns | 0x80)
    middles = (numbers[1:] + numbers[:-1]) / 2
    assert np.array_equal(encode(dtype, middles), np.where(patterns[:-1] % 2 == 0, patterns[:-1], patterns[1:]))
    assert (encode(dtype, np.nextafter(middles, np.float32(0))) == patterns[:-1]).all()
    assert (encode(dtype, np.nextafter(middles, np.float32(np.inf))) == patterns[1:]).all()


@pytest.mark.parametrize("experts", [[2], [0, 1, 2, 3]])
def test_gate_and_up_swapped_in_an_engines_stacked_experts(experts: list[int]) -> None:
    """FusedMoE of vLLM and SGLang holds gate above up, [experts, 2 × intermediate, hidden]."""
    name = "model.layers.3.mlp.experts.w13_weight"
    whole = bits(4, 16, 8)
    other = whole.patterns.copy()
    for expert in experts:
        other[expert] = np.concatenate([other[expert][8:], other[expert][:8]])
    (verdict,) = one(whole, TensorBits(whole.dtype, other), name)
    assert verdict.causes == ("gate-up-swapped",)
    assert verdict.sentence.endswith(": gate and up are swapped")


@pytest.mark.parametrize(("order", "words"), [("kqv", "K, Q, V"), ("qvk", "Q, V, K"), ("vkq", "V, K, Q")])
@pytest.mark.parametrize("rows", [(16, 16, 16), (32, 8, 8)], ids=["as many heads", "fewer heads of keys"])
def test_q_k_and_v_stacked_in_another_order(order: str, words: str, rows: tuple[int, int, int]) -> None:
    """What a loader does that copies the blocks one after the other, in the order in which they come."""
    names = {part: f"model.layers.3.self_attn.{part}_proj.weight" for part in "qkv"}
    sound = {part: bits(number, 16, seed=seed) for seed, (part, number) in enumerate(zip("qkv", rows, strict=True))}
    flat = np.concatenate([sound[part].patterns for part in order])
    ends = np.cumsum(rows)
    found = {
        part: TensorBits("F32", flat[end - number : end]) for part, number, end in zip("qkv", rows, ends, strict=True)
    }
    expected = {names[part]: (lambda tensor=tensor: tensor) for part, tensor in sound.items()}
    actual = {names[part]: (lambda tensor=tensor: tensor) for part, tensor in found.items()}
    (verdict,) = diagnose(DiagnosisInput(expected, actual))
    assert (
        verdict.sentence == f"model.layers.3.self_attn.q_proj+k_proj+v_proj.weight: Q, K and V are in the order {words}"
    )
    assert verdict.confidence == "exact"
