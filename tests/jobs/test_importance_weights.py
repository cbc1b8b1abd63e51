"""What a job's importance correction does to its loss, as each framework's reader says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.jobs.open_job import open_job
from tests.jobs.test_corpus import JOBS

VERL = "algorithm.rollout_correction"
SKYRL = "trainer.algorithm.off_policy_correction"
CASES = [
    ("trl/grpo.yaml", [], "token", None, 3.0, "none", None, None),
    ("trl/grpo.yaml", ["vllm_importance_sampling_mode=sequence_mask"], "sequence", None, None, "sequence", None, 3.0),
    (
        "trl/grpo.yaml",
        ["vllm_importance_sampling_mode=sequence_truncate", "vllm_importance_sampling_clip_min=0.5"],
        "sequence", 0.5, 3.0, "none", None, None,
    ),
    ("trl/grpo.yaml", ["vllm_importance_sampling_correction=false"], "none", None, None, "none", None, None),
    ("nemo_rl/megatron.yaml", [], "token", None, None, "none", None, None),
    ("nemo_rl/megatron.yaml", ["loss_fn.sequence_level_importance_ratios=true"], "sequence", None, None, "none", None, None),
    (
        "nemo_rl/megatron.yaml",
        [
            "loss_fn.truncated_importance_sampling_type=seq-mask-tis",
            "loss_fn.truncated_importance_sampling_ratio=1.002",
            "loss_fn.truncated_importance_sampling_ratio_min=0.999",
        ],
        "token", None, None, "geometric", 0.999, 1.002,
    ),
    ("nemo_rl/megatron.yaml", ["loss_fn.use_importance_sampling_correction=false"], "none", None, None, "none", None, None),
    ("verl/megatron.sh", [], "token", None, 2.0, "none", None, None),
    (
        "verl/megatron.sh",
        [f"{VERL}.rollout_is=sequence", f"{VERL}.rollout_is_threshold=0.5_5.0"],
        "sequence", None, None, "sequence", 0.5, 5.0,
    ),
    (
        "verl/megatron.sh",
        [f"{VERL}.rollout_rs=seq_mean_k1", f"{VERL}.rollout_rs_threshold=2.0"],
        "token", None, 2.0, "geometric", 0.5, 2.0,
    ),
    ("slime/colocated.sh", [], "token", 0.0, 2.0, "none", None, None),
    ("slime/colocated.sh", ["tis-clip=1.5"], "token", 0.0, 1.5, "none", None, None),
    (
        "slime/colocated.sh",
        ["custom-tis-function-path=slime.backends.megatron_utils.loss.icepop_function", "tis-clip-low=0.5"],
        "token", None, None, "token", 0.5, 2.0,
    ),
    ("skyrl/grpo.sh", [], "token", None, 2.0, "none", None, None),
    ("skyrl/grpo.sh", [f"{SKYRL}.tis_ratio_type=sequence"], "sequence", None, 5.0, "none", None, None),
    ("skyrl/grpo.sh", [f"{SKYRL}.sequence_mask_metric=geometric"], "token", None, 2.0, "geometric", 0.99, 1.01),
    ("skyrl/grpo.sh", [f"{SKYRL}.tis_ratio_type=null"], "none", None, None, "none", None, None),
    ("ms_swift/megatron_server.sh", [], "token", None, None, "geometric", None, 2.0),
    ("ms_swift/colocate.sh", [], "token", None, 2.0, "none", None, None),
    ("open_instruct/beaker_2025.sh", [], "token", None, 2.0, "none", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("job", "overrides", "weight", "low", "high", "mask", "mask_low", "mask_high"), CASES)
def test_weights(
    job: str,
    overrides: list[str],
    weight: str,
    low: float | None,
    high: float | None,
    mask: str,
    mask_low: float | None,
    mask_high: float | None,
) -> None:
    found = open_job([str(JOBS / job), *overrides], scan=False)
    assert (found.text("algorithm.weight"), found.text("algorithm.mask")) == (weight, mask)
    bounds = [found.number(f"algorithm.{name}") for name in ("weight_low", "weight_high", "mask_low", "mask_high")]
    assert bounds == [low, high, mask_low, mask_high]


AREAL = """
cluster: {n_nodes: 1}
rollout: {backend: "sglang:d1", max_head_offpolicyness: 2}
actor:
  backend: "fsdp:d1"
  use_decoupled_loss: true
  rejection_sampling: {level: sequence, action: mask, metric: ratio, upper: 1.01, lower: 0.99}
"""
ROLL = """
actor_train: {strategy_args: {strategy_name: megatron_train}}
actor_infer: {strategy_args: {strategy_name: vllm}}
train_infer_correction: {is_weight: {enabled: true, weight_type: sequence}}
"""


@pytest.mark.parametrize(
    ("framework", "text", "wanted"),
    [
        ("areal", AREAL, ("geometric", "geometric", 0.99, 1.01)),
        ("roll", ROLL, ("sequence", "none", None, None)),
        ("roll", ROLL.replace("enabled: true", "enabled: false"), ("none", "none", None, None)),
    ],
)
def test_weights_of_a_configuration(framework: str, text: str, wanted: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    found = open_job([str(tmp_path / "job.yaml")], framework=framework, scan=False)
    weights = (found.text("algorithm.weight"), found.text("algorithm.mask"))
    assert (*weights, found.number("algorithm.mask_low"), found.number("algorithm.mask_high")) == wanted


def test_a_weight_stands_where_it_is_set() -> None:
    found = open_job([str(JOBS / "verl/megatron.sh")], scan=False)
    assert found["algorithm.weight"].place == "megatron.sh:9"
    assert found["algorithm.weight_high"].place == "megatron.sh:10"
