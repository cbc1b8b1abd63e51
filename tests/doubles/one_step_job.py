"""Stands in for a framework's program: takes as many steps as its words say, logs each as that framework does, records its syncs.

python one_step_job.py FRAMEWORK WORDS…; the variable FAULT makes it commit one.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from pathlib import Path

STEPS = re.compile(r"(?:\+\+|--)(?:trainer\.total_training_steps|max_steps|grpo\.max_num_steps)=(\d+)")
FORMS = {
    "verl": "(TaskRunner pid=7) step:{step} - actor/pg_loss:np.float64({loss}) - actor/grad_norm:{norm} - rollout_corr/k3_kl:{k3}",
    "trl": "{{'loss': '{loss}', 'grad_norm': '{norm}', 'sampling/sampling_logp_difference/mean': '{mean}'}}",
    "nemo-rl": "\n📊 Training Results:\n  • Loss: {loss}\n  • Generation KL Error: {k3}\n  • Total step time: 3.00s",
}


def run_job(framework: str, words: list[str]) -> None:
    """Run the job."""
    from ckptcheck.runs.history.record import Record, SyncRecord

    fault = os.environ.get("FAULT", "")
    Path("words.txt").write_text("\n".join(words), encoding="utf-8")
    if fault == "fails":
        print("RuntimeError: CUDA out of memory\nTraceback (most recent call last):")
        sys.exit("subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.")
    steps = 1000 if fault == "goes on" else next((int(m[1]) for m in map(STEPS.fullmatch, reversed(words)) if m), 500)
    watch = dict(pair.split("=") for pair in os.environ.get("CKPTCHECK_WATCH", "").split(",") if pair)
    first, learned = 1, 0

    def sync() -> None:
        if "record" in watch and fault != "no record":
            values = {f"model.layers.{layer}.mlp.up_proj.weight": f"{layer}-{learned}" for layer in range(4)}
            held = {f"0/{name}": value for name, value in values.items()}
            # the engine knows no steps, and counts the first two as none
            Record(watch["record"]).append(SyncRecord(sent=values, held=held, engine="vllm", step=0, alike=True))

    if framework == "verl":
        sync()
    for step in range(first, first + steps):
        if framework != "verl":
            sync()
        gap = 0.3 if fault == "wide gap" else 1e-3
        learned += fault not in ("no gradient", "unchanged")
        numbers = {
            "step": step,
            "loss": math.nan if fault == "nan" else 0.25,
            "norm": 0.0 if fault == "no gradient" else 1.5,
            "k3": gap**2 / 2,
            "mean": gap,
        }
        print(FORMS[framework].format(**numbers), flush=True)
        if framework == "verl":
            sync()
        if step == 5:
            signal.pause()  # a test that does not end it fails by its own limit


if __name__ == "__main__":
    run_job(sys.argv[1], sys.argv[2:])
