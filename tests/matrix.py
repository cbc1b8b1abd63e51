"""Refits live, over trainer layouts, engine ranks, models, dtypes and transports: ``make matrix``.

    python -m tests.matrix [--only WORD ...] [--but WORD ...] [--list] [--keep] [--page]

Every cell is a whole trial (see docs/refit.md) on the real megatron-core and the real engine. Weights have to be
those of a cold load to the last bit, logprobs within the floor that the cell measures: 1e-5 nats in float32. Processes are
used again, so that a cold load costs seconds. Prints a table; exits 1 where a cell fails. With --keep, each line replaces that
of the same cell in tests/data/refit_matrix.json, and build/refit-matrix.md is written from all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping

from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "fixtures"))

import smollm2

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.schemes import SCHEMES
from tests.factories.matrix_cell import Cell, MatrixRunner

LAYOUTS = (ParallelLayout(), ParallelLayout(tp=2), ParallelLayout(pp=2), ParallelLayout(tp=2, pp=2))
TRANSPORTS = ("reload", "gloo")
ROUTES = ("tensor", "gloo", "flattened_bucket", "disk")
"""Of SGLang."""


def cells() -> Iterator[Cell]:
    """Yield the matrix. Engines of two ranks come last and are perturbed: a cold load of one takes a minute."""
    for layout in (ParallelLayout(), ParallelLayout(pp=2), ParallelLayout(tp=3)):
        yield Cell("smollm2", layout)
        yield Cell("smollm2", layout, transport="tensor", engine="sglang")
    tiny = [("llama", LAYOUTS), ("qwen3", LAYOUTS), ("qwen3-moe", (*LAYOUTS, ParallelLayout(ep=2)))]
    for dtype in ("float32", "bfloat16"):
        for model, layouts in tiny:
            for number, layout in enumerate(layouts):
                yield Cell(model, layout, dtype=dtype, transport=TRANSPORTS[number % 2])
                yield Cell(model, layout, dtype=dtype, transport=ROUTES[number % 4], engine="sglang")
    yield Cell("smollm2", ParallelLayout(tp=3), dtype="bfloat16", transport="gloo")
    yield from quantized()
    for model, layouts in tiny:
        for number, layout in enumerate(layouts):
            yield Cell(model, layout, ranks=2, transport=TRANSPORTS[number % 2], perturb=0.02)
            yield Cell(model, layout, ranks=2, transport=ROUTES[number % 4], engine="sglang", perturb=0.02)


def quantized() -> Iterator[Cell]:
    """Yield every scheme that an engine can compute on a CPU: vLLM has no kernels for experts there, nor for INT4 in float32."""
    for name in SCHEMES:
        yield Cell("llama", ParallelLayout(tp=2), dtype="bfloat16", quantize=name)
        yield Cell("llama", ParallelLayout(tp=2), transport="tensor", engine="sglang", quantize=name)
        if name != "w8a8":  # INT8 experts SGLang has for NPUs alone
            yield Cell("qwen3-wide", ParallelLayout(ep=2), transport="tensor", engine="sglang", quantize=name)
    yield Cell("llama", ParallelLayout(pp=2), dtype="bfloat16", transport="gloo", quantize="w4a16")
    yield Cell(
        "qwen3-wide",
        ParallelLayout(),
        dtype="bfloat16",
        transport="flattened_bucket",
        engine="sglang",
        quantize="w4a16",
    )


HEAD = ("cell", "tensors", "differ", "cold", "trainer", "floor", "grad", "s", "verdict")
RESULTS = ROOT / "tests" / "data" / "refit_matrix.json"
PAGE = ROOT / "build" / "refit-matrix.md"
TEXT = """\
# The matrix of refits

Every line is a whole trial on the real megatron-core and the real engine, on a CPU (`make matrix`).

- `tensors`: how many are compared with a cold load, over all syncs; `differ`: how many of them differ.
- `cold`, `trainer`: the largest difference of logprobs from a cold load and from the trainer, in nats; `floor`: what is allowed.
- `grad`: the norm of the first step's gradient. With two engine ranks, noise replaces the step.

SmolLM2 is SmolLM2-135M-Instruct, the others are tiny (`fixtures/live.py`).

"""


def read_results() -> dict[str, dict[str, str]]:
    """Return what was kept: the name of a cell → the other columns of its line."""
    found: dict[str, dict[str, str]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def describe_totals(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the sentence of docs/refit.md."""
    passed = sum(each["verdict"] == "pass" for each in results.values())
    return f"{passed} of {len(results)} trials pass"


def write_page(results: Mapping[str, Mapping[str, str]]) -> None:
    """Write build/refit-matrix.md."""
    lines = [format_line(HEAD), "|" + "---|" * len(HEAD)]
    lines += [format_line((name, *(each.get(column, "–") for column in HEAD[1:]))) for name, each in results.items()]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(TEXT + "\n".join([*lines, "", f"{describe_totals(results)}.", ""]), encoding="utf-8")


def format_line(cells: tuple[str, ...]) -> str:
    """Return a line of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"


def keep(line: tuple[str, ...]) -> None:
    """Keep the line of a cell, and write the page."""
    results = read_results() | {line[0]: dict(zip(HEAD[1:], line[1:], strict=True))}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page(results)


def row(cell: Cell, trace: RefitTrace, report: Report, seconds: float) -> tuple[str, ...]:
    """Sum a cell up: tensors compared and different, largest gaps in nats from the cold load and from the trainer, floor."""
    seen = [compare_scoring(scoring) for scoring in trace.scorings]
    cold = max((max(each.prefill.most, each.decode.most) for each in seen), default=float("nan"))
    trainer = max((gap.most for each in seen for gap in (each.trainer, each.forced) if gap), default=float("nan"))
    said = "pass" if passed(cell, report) else ", ".join(sorted({finding.code for finding in report.findings}))
    return (
        str(cell),
        str(sum(len(sync.manifest) for sync in trace.syncs)),
        str(sum(len(sync.differing_tensors) for sync in trace.syncs)),
        f"{cold:.2g}",
        f"{trainer:.2g}",
        f"{trace.noise_floor.trainer_tolerance.most:.2g}",
        f"{trace.steps[0].grad_norm:.4g}" if trace.steps else "–",
        f"{seconds:.0f}",
        said or f"incomplete: {'; '.join(trace.failed_phases.values())}"[:120],
    )


def passed(cell: Cell, report: Report) -> bool:
    """Whether nothing was found but what is known of the engine."""
    return not report.crashed and {finding.code for finding in report.findings} == cell.known


def matches(words: list[str], all_of: list[str], none_of: list[str]) -> bool:
    """Whether a cell's name has all of some words and none of others."""
    return set(all_of) <= set(words) and not set(none_of) & set(words)


def main() -> None:
    """Run the cells that were asked for."""
    parser = argparse.ArgumentParser(description="Refits, live, cell by cell.")
    parser.add_argument("--only", nargs="*", default=[], help="cells whose name has all of these words")
    parser.add_argument("--but", nargs="*", default=[], help="and none of these")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--keep", action="store_true", help="keep the results, and write the page")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the results of before, and run nothing"
    )
    asked = parser.parse_args()
    if asked.page:
        write_page(read_results())
        return
    chosen = [cell for cell in cells() if matches(str(cell).split(), asked.only, asked.but)]
    if asked.list:
        print(*chosen, sep="\n")
        return
    try:
        for name in {"megatron", *(cell.engine for cell in chosen)}:
            find_interpreter(name)
    except CkptcheckError as missing:
        sys.exit(f"{missing.message}: {(missing.hint or '').partition(',')[0]} (make engines)")
    if any(cell.model == "smollm2" for cell in chosen) and not (smollm2.default_folder() / smollm2.DONE).is_file():
        smollm2.build(smollm2.default_folder())
    failed, begin = 0, time.monotonic()
    print(format_line(HEAD) + "\n|" + "---|" * len(HEAD), flush=True)
    with MatrixRunner() as bench:
        for cell in chosen:
            began = time.monotonic()
            trace, report = bench.run(cell)
            cells_of_row = row(cell, trace, report, time.monotonic() - began)
            print(format_line(cells_of_row), flush=True)
            if asked.keep:  # after every cell: a run of an hour may be ended
                keep(cells_of_row)
            failed += not passed(cell, report)
            for finding in report.findings:
                print(f"  {finding.code} {finding.message}", file=sys.stderr, flush=True)
    print(f"\n{len(chosen) - failed} of {len(chosen)} cells pass, in {(time.monotonic() - begin) / 60:.0f} minutes")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
