"""Reports with the pictures of every verb, from evidence that needs no engine."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.manifest import build_manifest
from ckptcheck.compare.verification import verify_manifest
from ckptcheck.linter import rule_loader
from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters.evidence_pictures import draw_pictures
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from tests.factories.attached_servers import NAMES, build_servers
from tests.factories.attribution_cases import build_attribution
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.comparison_cases import build_comparison
from tests.factories.conformance_cases import build_conformance
from tests.factories.critic_cases import WEIGHTS, build_critic
from tests.factories.history_cases import build_history
from tests.factories.job_cases import read_job
from tests.factories.localize_cases import build_localization
from tests.factories.lora_cases import run_lora_case
from tests.factories.parity_matrix_cases import build_matrix
from tests.factories.pictures import HOSTILE
from tests.factories.probe_cases import run_probe_case
from tests.factories.refit_cases import run_trial_case
from tests.factories.rollout_cases import draw_rollouts
from tests.factories.series_cases import build_series

OUT = "model.layers.1.self_attn.o_proj.weight"
JOB = f"""
actor_rollout_ref: {{actor: {{strategy: fsdp}}, rollout: {{name: vllm, dtype: bfloat16, temperature: 0.7}}}}
trainer: {{default_local_dir: "{HOSTILE[:20]}"}}
"""


def report_every_verb(folder: Path) -> dict[str, Report]:
    """Return name → report: what each verb says of evidence with a fault in it."""
    rollouts = RolloutEvidence(HOSTILE, draw_rollouts(noise=0.05), decode_text=lambda ids: HOSTILE)
    syncs = [{"stale": [OUT] if step == 2 else [], "loss": 3.0 - step, "step": step} for step in range(5)]
    sharded = open_checkpoint(str(CHECKPOINTS / "tiny-llama-sharded"))
    faults = [
        {"kind": "drop", "place": f"{place} bucket", "answer": answer, "detail": HOSTILE}
        for place, answer in (("first", "refused"), ("last", "silent"))
    ]
    evidence: dict[str, Evidence] = {
        "trial": run_trial_case({"ranks": 2, "faults": [{"kind": "dropped", "name": OUT}]}, folder / "trial"),
        "record": build_history({"syncs": syncs}, folder / "syncs.jsonl"),
        "adapter": run_lora_case({"faults": ["half stale"]}, folder / "lora"),
        "servers": build_servers(
            {"servers": [{}, {"differs": [NAMES[1]], "off": 0.1}], "reference": {}, "trainer": {}}
        ),
        "conformance": build_conformance({"outcomes": faults}),
        "rollouts": rollouts,
        "matrix": build_matrix({"errors": {"100": 1.001, "1000": 1.2}}),
        "search": build_attribution({"effects": [{"undone_by": "heat", "size": 0.1}]}),
        "probes": run_probe_case({"probes": ["decode", "inflight"]}, folder / "probes"),
        "modules": build_localization({"do": [{"point": "model.layers.1.mlp.act", "how": "factor", "by": 1.5}]}),
        "critic": build_critic({"gradients": {WEIGHTS[1]: (0.05, 0.1, 0.1)}}),
        "job": read_job({"job": JOB}, folder / "job"),
        "comparison": build_comparison(
            {"base": "tiny-llama", "recast": {"lm_head.weight": "BF16"}}, folder / "comparison"
        ),
        "saves": build_series(
            {"saves": [{"step": 10}, {"step": 20}, {"step": 30, "like": 20, "counters": {HOSTILE: 3.0}}]}
        ),
        "manifest": verify_manifest(sharded, build_manifest(sharded)),
    }
    rules = [rule for rule in rule_loader.load_rules() if rule.on in {each.kind for each in evidence.values()}]
    return {"scan": ckptcheck.scan(CHECKPOINTS / "tiny-llama-sharded", pictures=True)[0]} | {
        name: structs.replace(
            run_rules(each, [rule for rule in rules if rule.on == each.kind]), pictures=draw_pictures(each)
        )
        for name, each in evidence.items()
    }
