"""Judging 10 million tokens, against numpy that reads them and computes a few of the numbers; and the judgement as a page.

Seconds of a core, whole processes.
"""

from __future__ import annotations

import sys

import numpy as np

from ckptcheck import rollouts
from ckptcheck.rollouts import Metadata, Rollouts, ScorerInfo
from tests.benchmarks.figures import line
from tests.benchmarks.processes import CKPTCHECK, median, ratio, run_in_turn, temporary_folder

TOKENS, LENGTH, PROMPT = 10_000_000, 2_000, 200
ALONE = (
    "import sys, numpy; from safetensors.numpy import load_file\n"
    "columns = load_file(sys.argv[1])\n"
    "gap = (columns['trainer_logprobs'] - columns['engine_logprobs'])[columns['response_mask']].astype(numpy.float64)\n"
    "rho = numpy.exp(gap)\n"
    "print((rho - 1 - gap).mean(), numpy.abs(gap).max(), numpy.percentile(gap, (1, 50, 99)))\n"
)


def draw_rollouts(tokens: int) -> Rollouts:
    """Draw rollouts of equally long sequences, with versions and a mask."""
    draw = np.random.default_rng(0)
    number = tokens // LENGTH
    engine = -draw.exponential(0.3, tokens).astype(np.float32)
    trainer = np.minimum(engine + 0.01 * draw.standard_normal(tokens, np.float32), 0)
    starts = np.arange(number + 1, dtype=np.int64) * LENGTH
    columns = {
        "tokens": draw.integers(0, 50_000, tokens, dtype=np.int32),
        "starts": starts,
        "prompt_lengths": np.full(number, PROMPT, np.int32),
        "response_mask": np.tile(np.arange(LENGTH) >= PROMPT, number),
        "engine_logprobs": engine,
        "trainer_logprobs": trainer,
        "version_spans": np.stack([starts[:-1] + PROMPT, starts[1:], np.zeros(number, np.int64)], 1),
    }
    about = Metadata(
        "org/model",
        7,
        ScorerInfo("vllm"),
        ScorerInfo("megatron", weight_version="7"),
        vocabulary=50_000,
        versions=["7"],
    )
    return Rollouts(about, columns)


def main() -> None:
    """Measure and print."""
    path, page = temporary_folder() / "rollouts.safetensors", temporary_folder() / "judgement.html"
    rollouts.write_rollouts(draw_rollouts(TOKENS), path)
    judge = [*CKPTCHECK, "parity", "judge", str(path)]
    print(f"\nparity judge: {TOKENS:,} tokens in sequences of {LENGTH:,}; seconds of a core, whole processes")
    texts, pages, alone = run_in_turn(
        judge, [*judge, "--format", "html", "-o", str(page)], [sys.executable, "-c", ALONE, str(path)]
    )
    line("the whole judgement, seconds", f"{median(texts).seconds:.2f}", "≤ 1.0")
    line("numpy alone, a few of the numbers, seconds", f"{median(alone).seconds:.2f}", "")
    line("--format html / text, seconds", f"{ratio(pages, texts).seconds:.2f}", "≤ 1.3")
    line("--format html / text, memory", f"{ratio(pages, texts).megabytes:.2f}", "≤ 1.3")


if __name__ == "__main__":
    main()
