"""The run cannot be compared with the reference.

## What it checks
`ckptcheck parity judge RUN --against REFERENCE`: the files of the reference are well-formed, and the two runs have at least five
steps in common at which something can be compared.

## Why it matters
Fewer steps do not show how noisy the reference is, so no difference can be told from chance. A check that compared nothing must
not look like a passed one.

## How to fix
Save rollouts of both runs at the same steps, five or more, with their step (`ckptcheck parity convert --step N`).

## When it can be wrong
No case is known.

## Seen in
runs that save rollouts every 10 steps, compared with others that save every 25
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.text.formatting import count


@rule("PAR045", "unusable-reference", severity="error", on="rollout-runs")
def check(runs: RunComparison) -> Iterator[Problem]:
    for member in runs.reference.members:
        if member.defect:
            yield Problem(f"a file of the reference is malformed: {member.defect}", file=member.target)
    if not runs.comparisons:
        run, reference = runs.steps
        yield Problem(
            f"nothing is compared: the run has {count(len(run), 'step')}, the reference {len(reference)}, and"
            f" {len(run & reference)} are in common, where {runs.least_steps} are needed",
            hint="save rollouts of both runs at the same steps, scored by both sides",
        )
