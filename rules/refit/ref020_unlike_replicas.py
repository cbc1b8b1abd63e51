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

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.trainers.base import UnlikeReplicas
from ckptcheck.text.formatting import count, format_ranges, join_truncated


@rule(
    "REF020",
    "unlike-replicas",
    severity="error",
    on="refit",
    when=lambda trace: bool(trace.replica_mismatch),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for step, unlike in trace.replica_mismatch.items():
        if unlike:
            names = tuple(dict.fromkeys(each.name for each in unlike))
            step_label = f"after step {step}" if step else "after the load"
            yield Problem(
                f"{step_label}, the trainer's ranks hold different copies of {count(len(names), 'weight')}:"
                f" {join_truncated(names)}{_describe_copies(unlike)}",
                key=sorted(names)[0],
                hint="only one of the copies is exported; look "
                + (
                    "for a gradient that is not reduced over these ranks"
                    if step
                    else "at what each rank loads, and at what it initializes by itself"
                ),
                names=names,
            )
            return


def _describe_copies(unlike: Sequence[UnlikeReplicas]) -> str:
    """Say which ranks hold which copy, and which of them kept that of before the step."""
    first = unlike[0]
    which = "" if all(each.copies == first.copies for each in unlike) else f" (of {first.name})"
    # those that are fewer differ from the others; of equally many, those without rank 0
    fewer, *others = sorted(first.copies, key=lambda ranks: (len(ranks), -ranks[0]))
    stale = set(first.stale).intersection(*(each.stale for each in unlike))
    kept = f"; {_name_ranks(sorted(stale))} kept what was there before the step" if stale else ""
    if len(first.copies) > 2:
        return f"; there are {len(first.copies)} copies{which}{kept}"
    verb = "differs" if len(fewer) == 1 else "differ"
    return f"; {_name_ranks(fewer)} {verb} from {_name_ranks(others[0])}{which}{kept}"


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"
