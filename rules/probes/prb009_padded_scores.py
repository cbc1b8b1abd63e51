"""The trainer gives a sequence other logprobs when it pads it to a longer one.

## What it checks
The trainer scores sequences one by one, and then together with one twice as long, to which all are padded on the right:
transformers gets one batch with an attention mask, as from a collator; Megatron gets microbatches of that length.

## Why it matters
Rollouts differ in length, so training batches are padded or packed. If the model attends to padding, or padding shifts positions,
every short sequence of a batch is scored wrongly, and no engine can agree with that.

## How to fix
Pad on the right for causal models, or pass the attention mask and position ids that count only real tokens. With packing, check
the sequence boundaries (cu_seqlens).

## When it can be wrong
- The limit is 1e-3 nats in float32 and a mean exp|difference| of 1.05 in narrower dtypes. A mixture of experts can exceed it
  without a fault if a batch of another shape rounds, and so routes, a token differently. Score in float32 (`--dtype float32`) to
  tell the two apart.
- The probe tests the trainer that ckptcheck starts, not how your own code pads or packs.

## Seen in
NVIDIA-NeMo/RL's guide for new models: "`batch_size>1` may produce larger errors than `batch_size=1`"
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.live.experiments.probes.two_sides import PaddingResult
from ckptcheck.rollouts.gap_summary import exceeds_rounding


@rule("PRB009", "padded-scores", severity="error", on="probe", when=requires_probe("padding"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("padding", PaddingResult)
    if exceeds_rounding(result.gap, result.dtype):
        yield Problem(
            f"the trainer gives sequences other logprobs beside a longer one: by up to"
            f" {result.gap.largest:.3g} nats, mult_prob_error {result.gap.mult_prob_error:.4g}",
            hint="look at the attention mask and at position ids of padded sequences",
        )
