"""The record of expert routing lacks rows.

## What it checks
Every token but the last of its sequence has experts in every layer that has any. -1 for all choices means that none were recorded.

## Why it matters
A router replay has nothing to replay there. NeMo-RL lets Megatron's router choose for such tokens, and miles sends them to the
experts 0, 1, 2, …, so the trainer computes other logprobs than the engine from there on.

## How to fix
Ask for the routing with every request of a sequence, those after a tool call, an abort or a preemption included, and join the
parts at the right token. An engine that gets a request again has to compute its prompt again, or keep the rows of what it has
cached.

## When it can be wrong
Tokens that no engine computed, such as the answer of a tool that ends a sequence, can have no row. A job that replays only the
tokens of responses does without the others.

## Seen in
NVIDIA-NeMo/RL `backfill_missing_routed_experts`, radixark/miles miles/utils/replay_base.py (-1 becomes the experts 0, 1, 2, …),
vllm-project/vllm#39917 (routing that was gathered before a preemption is dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_rows
from ckptcheck.text.formatting import count


@rule(
    "PAR065",
    "missing-routing-rows",
    severity="warning",
    on="rollouts",
    when=lambda evidence: bool(evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        if (missing := record.missing) is not None:
            text = f"{describe_rows(record, missing)} {'names' if missing.number == 1 else 'name'} no experts (-1)"
            hint = "find out which request of that sequence did not report its routing"
            yield Problem(text, key=f"{record.column}, {missing.place}", hint=hint)
        elif not record.captured_layers.any() and record.due_rows and record.is_all_missing:
            text = f"none of {count(record.due_rows, 'row')} of {record.column} names an expert (-1)"
            yield Problem(text, key=record.column, hint="switch the engine's report of routed experts on")
