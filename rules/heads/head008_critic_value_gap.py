"""The critic computes other values in megatron-core than in transformers.

## What it checks
- Every output has the shape [B, S, 1], and in Megatron only the last pipeline stage has the value head.
- In each parallel layout the values of all tokens but the last, [B, S−1], without padding and prompts, lie within 1e-5 of those
  of transformers, in float32, relative to the largest value.

## Why it matters
Advantages are computed from values. A critic that was trained in one framework and continues in the other starts from other
values, and nothing reports that.

## How to fix
`ckptcheck diff --critic` compares the weights on both sides. If they are equal, the two models compute differently: look for a
setting of the config that the conversion leaves out (rope, norm, biases).

## When it can be wrong
Where values nearly cancel in the head, rounding in float32 exceeds the bound. The guide's `torch.allclose(rtol=1e-5)` is stricter
for single values near zero; the table counts those, and they are no error.

## Seen in
The design of ROLL's Megatron critic (`test_backend_consistency`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.critic import RTOL, CriticComparison
from ckptcheck.text.formatting import format_shape


@rule("HEAD008", "critic-value-gap", severity="error", on="critic")
def check(critic: CriticComparison) -> Iterator[Problem]:
    expected = (*critic.batch, 1)
    for name, shapes in (
        ("transformers", critic.shapes),
        *((f"Megatron {run.layout}", run.shapes) for run in critic.runs),
    ):
        if wrong := next((shape for shape in shapes if shape != expected), None):
            yield Problem(
                f"{name}'s output has the shape {format_shape(wrong)}, not {format_shape(expected)}",
                hint="let the head compute one value for a token",
            )
    for run in critic.runs:
        with_head = [rank for rank, heads in enumerate(run.heads) if heads]
        if not with_head or with_head[-1] != len(run.heads) - 1:
            yield Problem(
                f"Megatron {run.layout}: the last rank has no value head",
                hint="create the head where post_process is true",
            )
        if len(run.values) != len(critic.values):
            yield Problem(
                f"Megatron {run.layout} computes {len(run.values):,} values, and transformers {len(critic.values):,}",
                hint="take all tokens but the last",
            )
            continue
        gap, beyond = critic.value_gaps[run.layout]
        if not gap <= RTOL * critic.scale:
            yield Problem(
                f"Megatron {run.layout}: values differ from transformers' by up to {gap:.3g}, where the largest value is"
                f" {critic.scale:.3g}; {beyond:,} of {len(run.values):,} are beyond rtol {RTOL:g}",
                hint="compare the weights with ckptcheck diff --critic, then the settings of both models",
            )
