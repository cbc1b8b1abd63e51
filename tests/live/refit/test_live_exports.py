"""What a trial says of a Megatron trainer whose export is not what its ranks hold, on the real megatron-core and the real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ckptcheck.live.runtime.trainers import megatron
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from tests.conftest import needs_engine
from tests.factories.live_bench import messages_by_code
from tests.factories.matrix_cell import Cell, MatrixRunner
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
WRONG = {"REF011", "REF012", "REF017", "REF036", "REF037"}
"""What may be found: vLLM's prefix cache, logprobs and texts that are off, and the export. Nothing blames the sync."""


class ExportRunner(MatrixRunner):
    """Plants a fault in each trainer that it starts: its name, and after how many steps it shows."""

    fault = ("", 0)

    def trainer(self, *arguments: Any, **named: Any) -> Any:
        trainer = super().trainer(*arguments, **named)
        trainer.host.call("plant", fault=self.fault[0], since=self.fault[1])
        return trainer


@pytest.fixture(scope="module")
def bench() -> Iterator[ExportRunner]:
    needs_engine("megatron")
    needs_engine("vllm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "MODULE", DOUBLES / "faulty_megatron_trainer.py")
        with ExportRunner() as made:
            yield made


@pytest.mark.parametrize(
    ("fault", "since", "model", "layout", "phrases"),
    [
        ("zero-last", 1, "qwen3", ParallelLayout(tp=2), ["after step 1, ", "of TP rank 1 of 2: the export has zeros there"]),
        pytest.param(
            "reverse",
            1,
            "llama-nine",
            ParallelLayout(tp=3),
            ["columns 64 to 95 of the first, of TP rank 2 of 3: the export has columns 0 to 31 there, which TP rank 0 of 3 holds"],
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "layers",
            0,
            "qwen3",
            ParallelLayout(pp=2),
            ["before any step, ", "layer 0 is layer 1, layer 1 is layer 0"],
            marks=pytest.mark.matrix,
        ),
        ("experts", 1, "qwen3-moe", ParallelLayout(ep=2), ["of EP ranks 0-1 of 2: in the export, expert 0 is expert 2"]),
        pytest.param(
            "stale-norms",
            1,
            "qwen3",
            ParallelLayout(tp=2),
            ["9 weights", "still has the values of the start"],
            marks=pytest.mark.matrix,
        ),
        (
            "saves",
            1,
            "qwen3",
            ParallelLayout(tp=2),
            ["the checkpoint that the trainer saves has other values than it exports in 1 weight: model.norm.weight"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_export_is_blamed_with_its_rank_and_direction(
    bench: ExportRunner, fault: str, since: int, model: str, layout: ParallelLayout, phrases: list[str]
) -> None:
    bench.fault = (fault, since)
    trace, report = bench.run(Cell(model, layout))
    assert not trace.failed_phases
    found = messages_by_code(report)
    told = " / ".join(finding.message for finding in report.findings if finding.code == "REF037")
    assert [phrase for phrase in phrases if phrase not in told] == [], told
    if fault == "saves":
        assert not {"REF003", "REF009"} & found.keys()
    else:
        assert found.keys() <= WRONG
        assert "neither the sync nor the engine is to blame" in found["REF012"]
