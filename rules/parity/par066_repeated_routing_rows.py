"""Rows of expert routing repeat earlier rows, although their tokens are others.

## What it checks
No stretch of rows equals the rows before it, or those of an earlier stretch, in all layers, while its tokens differ. How many
equal rows are chance depends on the model; the rule takes the file's own shorter stretches as the measure, and wants 3 rows after
one another or 8 of a copied stretch.

## Why it matters
A router chooses by the token's hidden state. Rows that repeat are left over in a buffer: of padding, of another request, or of an
earlier part of this one that was appended again. A router replay sends these tokens to experts that they never went to.

## How to fix
Update the engine, or switch off what the stretch begins at: a chunk of the prefill, a preemption, a change of weights, a cached
prefix. Cut the rows of a continued request at the token where it continues.

## When it can be wrong
Models with few experts in one or two layers have equal rows for many tokens; the file's shorter stretches show that.

## Seen in
sgl-project/sglang#36404 (one row stands for 67 tokens from a chunk's boundary on), vllm-project/tpu-inference#3583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR066",
    "repeated-routing-rows",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        if not record.repeated:
            continue
        longest = record.repeated[0]
        rows = count(longest.last - longest.first + 1, "row")
        source = f"token {longest.source}"
        if longest.source_sequence != longest.sequence:
            source += f" of sequence {longest.source_sequence}"
        if longest.distance == 1:
            text = f"the experts of {source} stand for tokens {longest.first} to {longest.last} too"
        else:
            text = (
                f"the {rows} from token {longest.first} on are those from {source} on, although the tokens are others"
            )
        if longest.at_version_change:
            text += ", from a change of the weight version on"
        if len(record.repeated) > 1:
            text += f"; this is the longest of {count(len(record.repeated), 'such stretch', 'such stretches')}"
        yield Problem(
            text,
            key=f"{record.column}, sequence {longest.sequence}",
            hint="look what happened at that token: a chunk, a preemption, a cached prefix, a request that was continued",
        )
