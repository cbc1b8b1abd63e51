"""Judging 10 million tokens, against a loop over tokens that computes the same numbers."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ckptcheck import rollouts
from ckptcheck.rollouts import Metadata, Rollouts, ScorerInfo
from ckptcheck.rollouts.metrics import compute_metrics
from tests.benchmarks.figures import line
from tests.benchmarks.headers import ROOT

TOKENS, LENGTH, PROMPT = 10_000_000, 2_000, 200
LOOP = 500_000
"""Tokens that the loop is timed over: it takes as long for each."""


def drawn(tokens: int) -> Rollouts:
    """Rollouts of equally long sequences, with versions and a mask."""
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


def looped(engine: Iterable[float], trainer: Iterable[float], mask: Iterable[bool]) -> dict[str, float]:
    """All sums that the gap is made of, token by token, as a script would add them up."""
    exp = math.exp
    names = "error k1 k2 k3 rho rho2 clipped weight weight2 abs prob prob2 q p uv uu vv"
    of = dict.fromkeys(names.split(), 0.0)
    most = highest = 0.0
    number = 0
    kept, bins = [], [[0, 0.0, 0.0] for _ in range(64)]
    sequences = [[0, 0.0, 0.0] for _ in range(LOOP // LENGTH)]
    for at, (q, p, compared) in enumerate(zip(engine, trainer, mask, strict=True)):
        if not compared:
            continue
        r = p - q
        apart, rho = abs(r), exp(r)
        error = exp(apart)
        u, v = exp(q), exp(p)
        distance = abs(u - v)
        weight = min(max(rho, 0.5), 2.0)
        of["error"] += error
        of["k1"] -= r
        of["k2"] += r * r / 2
        of["k3"] += math.expm1(r) - r
        of["rho"] += rho
        of["rho2"] += rho * rho
        of["clipped"] += abs(rho - 1) > 0.2
        of["weight"] += weight
        of["weight2"] += weight * weight
        of["abs"] += apart
        of["prob"] += distance
        of["prob2"] += distance * distance
        of["q"] += q
        of["p"] += p
        of["uv"] += u * v
        of["uu"] += u * u
        of["vv"] += v * v
        most, highest = max(most, apart), max(highest, distance)
        kept.append(apart)
        for total in (bins[(at % LENGTH - PROMPT).bit_length()], sequences[at // LENGTH]):
            total[0] += 1
            total[1] += apart
            total[2] += error
        number += 1
    kept.sort()
    return {name: value / number for name, value in of.items()} | {"max": most, "prob_max": highest}


PROGRAM = (
    "import json, sys, time\n"
    "from pathlib import Path\n"
    "from ckptcheck.linter.rule_loader import load_rules\n"
    "from ckptcheck.rollouts import rollouts\n"
    "from ckptcheck.rollouts.rollout_evidence import RolloutEvidence\n"
    "from ckptcheck.linter.runner import run_rules\n"
    "rules = load_rules()\n"
    "import numpy\n"
    "def peak():\n"  # VmHWM: ru_maxrss of a child begins at what its parent held
    "    return next(int(row.split()[1]) for row in open('/proc/self/status') if row.startswith('VmHWM'))\n"
    "before = peak()\n"
    "began = time.process_time()\n"
    "report = run_rules(RolloutEvidence(sys.argv[1], rollouts.read_rollouts(Path(sys.argv[1]))), rules)\n"
    "took = time.process_time() - began\n"
    "assert report.verdict == 'clean', report.findings\n"
    "print(json.dumps([took, len(report.passed), (peak() - before) * 1024 / 1e6]))\n"
)


def main() -> None:
    """Measure and print."""
    made = drawn(TOKENS)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "rollouts.safetensors"
        rollouts.write_rollouts(made, path)
        command = [sys.executable, "-c", PROGRAM, str(path)]
        runs = [json.loads(subprocess.check_output(command, cwd=ROOT, text=True)) for _ in range(3)]
    seconds, rules, megabytes = sorted(runs)[1]
    part = drawn(LOOP)
    arrays = [part.columns[name] for name in ("engine_logprobs", "trainer_logprobs", "response_mask")]
    began = time.process_time()
    wanted = looped(*arrays)
    loop = (time.process_time() - began) * TOKENS / LOOP
    ours = []
    for _ in range(3):
        began = time.process_time()
        assert compute_metrics(made) is not None
        ours.append(time.process_time() - began)
    metrics = statistics.median(ours)
    found = compute_metrics(part)
    assert found is not None
    assert np.allclose(
        (found.mult_prob_error, found.k3, found.abs_mean), [wanted[name] for name in ("error", "k3", "abs")]
    )
    print(f"\nparity judge: {TOKENS:,} tokens in sequences of {LENGTH:,}; seconds of processor time")
    line("all numbers of the gap", f"{metrics:.2f}", "")
    line("the same by a Python loop over the tokens of the arrays", f"{loop:.1f}", "")
    line("that loop / ours", f"{loop / metrics:.0f}", "≥ 50")
    line(f"the whole judgement, {rules} rules", f"{seconds:.1f}", "")
    line("peak memory over the start of Python, mapped file included, MB", f"{megabytes:.0f}", "")


if __name__ == "__main__":
    main()
