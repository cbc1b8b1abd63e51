"""The trainer's ranks hold different copies of a weight that they should share.

## What it checks
After the load and after every step, whatever several ranks of the trainer hold a copy of (norms, routers, a tied head on the
last stage) is the same on all of them, bit for bit.

## Why it matters
Only one rank's copy is exported. The engine then computes with it, and the trainer with all of them: logprobs of the two
sides drift apart, and which copy a checkpoint gets depends on which rank writes it.

## How to fix
Look for a gradient that is not reduced over the ranks that share the weight, or a random state that is not the same on
them.

## When it can be wrong
A trainer that shards its optimizer and gathers the weights late differs between the step and the gathering.

## Seen in
NVIDIA/Megatron-LM issues about layer norms under sequence parallelism, NVIDIA-NeMo/RL#2471 (an embedding on two stages)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF020",
    "unlike-replicas",
    severity="error",
    on="refit",
    when=lambda trace: bool(trace.unlike),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for step, names in trace.unlike.items():
        if names:
            when = f"after step {step}" if step else "once loaded"
            yield Problem(
                f"{when} the trainer's ranks hold different copies of {count(len(names), 'weight')}: {few(names)}",
                key=sorted(names)[0],
                hint="only one of the copies is exported; look for a gradient that is not reduced over these ranks",
            )
            return
