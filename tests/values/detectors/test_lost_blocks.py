"""Scales that are zero in part."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values


def test_half_of_the_scales_of_a_real_matrix(smollm2_w4a16: Path, tmp_path: Path) -> None:
    """Of a matrix whose scales are small enough to be read, and of one where the runs of zeros tell it."""
    (rule,) = (rule for rule in rule_loader.load_rules() if rule.code == "QNT010")
    ckpt = open_checkpoint(str(smollm2_w4a16), value_reader=ValuePass())
    assert run_rules(ckpt, [rule]).findings == ()
    for module in ("self_attn.k_proj", "mlp.down_proj"):
        name = f"model.layers.12.{module}.weight_scale"
        raw = read_raw_values(ckpt, name)
        folder = copy_with_values(smollm2_w4a16, tmp_path / module, {name: raw[: len(raw) // 2].ljust(len(raw), b"\0")})
        (finding,) = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), [rule]).findings
        assert finding.key == name
        numbers = len(raw) // 2  # of BF16
        assert finding.message.startswith(
            f"{numbers // 2:,} block scales are 0 although their codes are not, in 1 tensor: "
        )
