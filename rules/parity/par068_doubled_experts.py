"""A row of expert routing names an expert twice.

## What it checks
The choices of a token in one layer are different experts. Rows of zeros in all layers are reported by themselves: nothing was
written to them. The last row of a sequence does not count, because frameworks pad it.

## Why it matters
A router takes the k best experts, and they are k different ones. Megatron's routing replay asserts that. Without the assertion,
the trainer sends the token to one expert with twice the weight.

## How to fix
Rows of zeros: find out where the record of these tokens is lost, for example on the prefill side of a disaggregated engine,
between the turns of a conversation, or before the request was preempted.

## When it can be wrong
Hash layers and models that route at random may choose an expert twice.

## Seen in
sgl-project/sglang#23885 (zeros for every token of a prompt; Megatron: "Duplicate experts in routing!"),
vllm-project/tpu-inference#3583, PrimeIntellect-ai/verifiers#2616 (a row of zeros at each turn's boundary)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_rows


@rule(
    "PAR068",
    "doubled-experts",
    severity="error",
    on="rollouts",
    when=lambda evidence: any(record.shape[1] > 1 for record in evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        if (zeros := record.zeros) is not None:
            verb = "is" if zeros.number == 1 else "are"
            text = f"{describe_rows(record, zeros)} {verb} zeros in all layers: nothing was recorded"
            hint = "find out where the routing of these tokens is lost; a replay sends them all to expert 0"
            yield Problem(text, key=f"{record.column}, {zeros.place}", hint=hint)
        if (found := record.duplicates) is not None:
            text = f"{describe_rows(record, found)} {'names' if found.number == 1 else 'name'} an expert twice"
            text += f", the first {list(found.ids)}"
            yield Problem(
                text,
                key=f"{record.column}, {found.place}",
                hint="compare the dtype and the layout of the ids with what the engine wrote",
            )
