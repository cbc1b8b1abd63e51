"""Reports with the pictures of refit, its record, parity and preflight, from evidence that needs no engine."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.linter import rule_loader
from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.pictures import ask_for_pictures
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.parity.rollout_evidence import RolloutEvidence
from tests.factories.attribution_cases import build_attribution
from tests.factories.history_cases import build_history
from tests.factories.job_cases import read_job
from tests.factories.parity_matrix_cases import build_matrix
from tests.factories.pictures import HOSTILE
from tests.factories.refit_cases import run_trial_case
from tests.factories.rollout_cases import draw_rollouts

OUT = "model.layers.1.self_attn.o_proj.weight"
JOB = f"""
actor_rollout_ref: {{actor: {{strategy: fsdp}}, rollout: {{name: vllm, dtype: bfloat16, temperature: 0.7}}}}
trainer: {{default_local_dir: "{HOSTILE[:20]}"}}
"""


def report_every_verb(folder: Path) -> dict[str, Report]:
    """Return name → report: a trial and a record with a stale tensor, rollouts, a matrix, a search, a job."""
    rollouts = RolloutEvidence(HOSTILE, draw_rollouts(noise=0.05), decode_text=lambda ids: HOSTILE)
    syncs = [{"stale": [OUT] if step == 2 else [], "loss": 3.0 - step, "step": step} for step in range(5)]
    evidence: dict[str, Evidence] = {
        "trial": run_trial_case({"ranks": 2, "faults": [{"kind": "dropped", "name": OUT}]}, folder / "trial"),
        "record": build_history({"syncs": syncs}, folder / "syncs.jsonl"),
        "rollouts": rollouts,
        "matrix": build_matrix({"errors": {"100": 1.001, "1000": 1.2}}),
        "search": build_attribution({"effects": [{"undone_by": "heat", "size": 0.1}]}),
        "job": read_job({"job": JOB}, folder / "job"),
    }
    rules = [rule for rule in rule_loader.load_rules() if rule.on in {each.kind for each in evidence.values()}]
    with ask_for_pictures():
        return {
            name: run_rules(each, [rule for rule in rules if rule.on == each.kind]) for name, each in evidence.items()
        }
