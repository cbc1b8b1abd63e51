"""A row of expert routing names an expert that there is not.

## What it checks
Expert ids are -1 (for all choices of a layer: not recorded) or 0 to the number of experts minus 1. The number of experts comes
from `--checkpoint`, else from the file; without it only negative ids are found.

## Why it matters
A trainer gathers by these ids. One beyond the last expert ends in a device assertion or reads other memory, and a negative one
counts from the end. Ids such as -56 are larger ids in a dtype that is too narrow: 200 as an int8.

## How to fix
Store ids in a dtype that holds the number of experts (int8 up to 127, uint8 up to 255, else int16). An id that equals the number
of experts is a shared expert that the engine fused into its routed ones: leave it out.

## When it can be wrong
The checkpoint is not the one that drew the tokens. Models with experts that compute nothing may number these after the real ones.

## Seen in
NVIDIA-NeMo/RL (`routed_experts_dtype` by the number of experts), PrimeIntellect-ai/prime-rl
src/prime_rl/inference/vllm/routed_experts.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_rows


@rule(
    "PAR067",
    "impossible-experts",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        if (found := record.impossible) is None:
            continue
        wrong = next(
            number for number in found.ids if number < 0 or (record.experts is not None and number >= record.experts)
        )
        if wrong == -1:
            reason, hint = "-1 beside real experts", "record all choices of a token, or none"
        elif wrong < -1:
            reason = f"a negative id: {wrong}" + (f" (an int8 holds {wrong + 256} so)" if wrong >= -128 else "")
            hint = "store the ids in a wider dtype"
        else:
            reason = f"expert {wrong} of a model with {record.experts} (0 to {(record.experts or 1) - 1})"
            hint = "leave shared experts out, and check that the checkpoint is the one that drew the tokens"
        text = f"{describe_rows(record, found)} {'has' if found.number == 1 else 'have'} {reason}"
        yield Problem(text, key=f"{record.column}, {found.place}", hint=hint)
