"""The trainer's ranks hold different copies of a weight that they share.

## What it checks
- After the load and after every step, a weight that several ranks hold (norms, routers, a tied head on the last
  stage) is the same on all of them, bit for bit.

## Why it matters
- Only one rank exports its copy. The engine computes with that copy and the trainer with all of them, so the logprobs
  of the two sides drift apart.
- Which copy a checkpoint gets depends on which rank writes it.

## How to fix
- Look for a gradient that is not reduced over the ranks that share the weight, or for a random state that differs
  between them.

## When it can be wrong
- A trainer that shards its optimizer and gathers the weights late differs between the step and the gathering.

## Seen in
NVIDIA/Megatron-LM issues about layer norms under sequence parallelism, NVIDIA-NeMo/RL#2471 (an embedding on two stages)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF020",
    "unlike-replicas",
    severity="error",
    on="refit",
    when=lambda trace: bool(trace.replica_mismatch),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for step, names in trace.replica_mismatch.items():
        if names:
            step_label = f"after step {step}" if step else "after the load"
            yield Problem(
                f"{step_label}, the trainer's ranks hold different copies of {count(len(names), 'weight')}:"
                f" {join_truncated(names)}",
                key=sorted(names)[0],
                hint="only one of the copies is exported; look for a gradient that is not reduced over these ranks",
                names=tuple(names),
            )
            return
