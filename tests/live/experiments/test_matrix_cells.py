"""The matrix: its cells, what is left out, how it goes on, and its table. On the fake engine, with a fake trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.matrix.live_matrix import MatrixRun
from ckptcheck.live.experiments.matrix.trace import MatrixTrace, Plan, drop_unmeasurable_cells, list_cells, parse_pairs
from ckptcheck.rollouts.prompts import make_synthetic_prompts
from tests.doubles.fake_serving import FakeServing
from tests.factories.probe_cases import ScoringTrainer
from tests.factories.refit_cases import VOCABULARY, weights

PLAN = Plan(lengths=(24, 40), data=("synthetic",), batches=(1, 3), response=6, sequences=3)


class Counting(FakeServing):
    """Counts what it is asked."""

    asked = 0

    def generate(self, *arguments: object, **named: object) -> list[object]:  # type: ignore[override]
        Counting.asked += 1
        return super().generate(*arguments, **named)  # type: ignore[arg-type, return-value]


def measure(folder: Path, ledger: dict[Any, Any], plan: Plan = PLAN, faults: tuple[str, ...] = ()) -> MatrixTrace:
    folder.mkdir(exist_ok=True)
    engine, trainer = Counting(weights(), faults), ScoringTrainer(folder)
    measurement = MatrixRun(
        plan,
        {"vllm": engine},
        {"transformers": trainer},
        lambda n, _, k: make_synthetic_prompts(VOCABULARY, n, k),
        ledger,
    )
    measurement.run()
    return MatrixTrace("trial", ledger)


def test_every_cell_is_measured_in_both_directions(tmp_path: Path) -> None:
    trace = measure(tmp_path, {})
    assert len(trace.measurements) == len(list(list_cells(PLAN))) == 2 * 2 * 2 * 2 * 2
    assert len(trace.values) == 8
    for value in trace.values.values():
        assert value.error == pytest.approx(1, abs=1e-6)
        assert set(value.directions) == {"engine", "trainer"}
        assert value.tokens == 2 * 2 * 3 * 6


def test_a_fault_of_batches_shows_in_the_rows_of_batches(tmp_path: Path) -> None:
    trace = measure(tmp_path, {}, faults=("batch",))
    off = {row[3]: value.error for (row, _), value in trace.values.items()}
    assert off[1] == pytest.approx(1, abs=1e-6)
    assert off[3] == pytest.approx(1.105, abs=1e-3)


def test_a_trainer_draws_as_the_plan_says(tmp_path: Path) -> None:
    asked: list[tuple[float, int]] = []

    class Drawing(ScoringTrainer):
        def sample(self, *given: Any, top_p: float = 1.0, top_k: int = 0, **named: Any) -> list[tuple[int, ...]]:
            asked.append((top_p, top_k))
            return super().sample(*given, top_p=top_p, top_k=top_k, **named)

    plan = replace(PLAN, lengths=(24,), batches=(1,), repeats=1, top_p=0.5, top_k=7)
    MatrixRun(
        plan, {"vllm": FakeServing(weights())}, {"transformers": Drawing(tmp_path)},
        lambda n, _, k: make_synthetic_prompts(VOCABULARY, n, k), {},
    ).run()  # fmt: skip
    assert set(asked) == {(0.5, 7)}


def test_every_measured_cell_is_counted(tmp_path: Path) -> None:
    ledger, told = dict[Any, Any](), list[tuple[int, int]]()
    plan = replace(PLAN, lengths=(24,), batches=(1,), repeats=3)
    engine, trainer = FakeServing(weights()), ScoringTrainer(tmp_path)
    MatrixRun(
        plan, {"vllm": engine}, {"transformers": trainer}, lambda n, _, k: make_synthetic_prompts(VOCABULARY, n, k), ledger,
        advance=lambda done, total: told.append((done, total)),
    ).run()  # fmt: skip
    number = len(ledger)
    assert told == [(done, number) for done in range(number + 1)]


def test_what_cannot_be_measured_is_named() -> None:
    plan, why = drop_unmeasurable_cells(
        replace(PLAN, lengths=(5, 100, 1000), data=("real", "synthetic")), 512, "it has no tokenizer"
    )
    assert plan.lengths == (100,)
    assert plan.data == ("synthetic",)
    assert why == {
        "length 5": "it leaves no room for a prompt beside 6 tokens of response",
        "length 1,000": "the model's context ends at 512 tokens (config.json)",
        "real data": "it has no tokenizer",
    }
    _, why = drop_unmeasurable_cells(replace(PLAN, lengths=(100, 510, 511), pairs=(("megatron", "sglang"),)), 512, "")
    assert why == {"length 511": "of the model's context of 512 tokens SGLang keeps 2 free"}
    with pytest.raises(CkptcheckError, match="nothing of the matrix can be measured: length 24"):
        drop_unmeasurable_cells(PLAN, 16, "")


def test_pairs_are_a_trainer_and_an_engine() -> None:
    assert parse_pairs(["megatron:vllm", "megatron:vllm"], ["vllm"]) == (("megatron", "vllm"),)
    with pytest.raises(CkptcheckError, match="vllm:megatron is no pair of a trainer and an engine"):
        parse_pairs(["vllm:megatron"], ["vllm"])


def test_who_drew_is_a_column_where_both_did_and_gaps_are_multiples_of_the_floor(tmp_path: Path) -> None:
    plan = replace(PLAN, lengths=(24,), decoding=("greedy",), batches=(3,))
    trace = measure(tmp_path, {}, plan, faults=("batch",))
    table, *_ = replace(trace, floor={"transformers:vllm": 1.02}).sections
    assert table.columns[5:] == ("±", "x ~ engine", "x ~ trainer", "mean |Δ|", "× floor")
    error, times = table.rows[0][4], table.rows[0][-1]
    assert times == pytest.approx((error - 1) / 0.02)  # type: ignore[operator]
    assert times == pytest.approx(5.26, abs=0.02)


def test_the_table_reads_as_the_guide_prints_it(tmp_path: Path) -> None:
    plan = replace(PLAN, lengths=(24,), decoding=("greedy",), batches=(1,), directions=("engine",))
    trace = replace(measure(tmp_path, {}, plan), left_out={"length 9,000": "the context ends"})
    assert trace.markdown() == (
        "| Sequence Length | Data Type | Generation Method | Batch Size | transformers:vllm |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| 24 | Synthetic | Greedy | 1 | 1.000000 ± 0 |\n"
        "\nNot measured: length 9,000: the context ends.\n"
    )
    table, left = trace.sections
    assert table.columns == ("length", "data", "decoding", "batch", "transformers:vllm", "±", "mean |Δ|")
    assert table.rows[0][:4] == (24, "synthetic", "greedy", 1)
    assert left.lines == ("not measured: length 9,000: the context ends",)
