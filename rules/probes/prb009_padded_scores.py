"""The trainer gives a sequence other logprobs when it is padded to a longer one.

## What it checks
Sequences are scored one by one, and then with a sequence twice as long, to which all are filled up on the right: transformers
gets one batch with an attention mask, as from a collator; Megatron gets microbatches of that length.

## Why it matters
Rollouts differ in length, so training batches are padded or packed. If padding is attended to, or shifts positions, every short
sequence of a batch is scored wrongly, and no engine can agree with that.

## How to fix
Pad on the right for causal models, or give the attention mask and position ids that count only real tokens. With packing, look at
the sequence boundaries (cu_seqlens).

## When it can be wrong
In float32 the limit is 1e-3 nats, in narrower types a mean exp|difference| of 1.05: a mixture of experts that routes
a token otherwise because a batch of another shape rounds otherwise can pass it without a fault. Score in float32
(`--dtype float32`) to tell the two apart. The trainer that ckptcheck starts is tried; how your own code pads or packs
is not.

## Seen in
NVIDIA-NeMo/RL's guide for new models: "`batch_size>1` may produce larger errors than `batch_size=1`"
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import apart
from ckptcheck.parity.probes.padding import PaddingSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB009", "padded-scores", severity="error", on="probe", when=asked("padding"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("padding", PaddingSeen)
    if apart(seen.gap, seen.dtype):
        yield Problem(
            f"the trainer scores sequences otherwise beside a longer one: by up to {seen.gap.largest:.3g} nats, mult_prob_error"
            f" {seen.gap.mult_prob_error:.4g}",
            hint="look at the attention mask and at position ids of padded sequences",
        )
