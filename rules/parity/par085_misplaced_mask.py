"""The response mask is inverted, lies some tokens off, or leaves out the end of what the engine drew.

## What it checks
Where the file records a response mask: the tokens behind a prompt that it leaves out although the engine gives them a logprob, in
sequences with tokens under the mask.

- Inverted: nine tenths of the tokens under the mask were never drawn (prompts, placeholders), and it leaves out nine tenths of
  those that were.
- Early or late: before, or behind, at least half of the stretches of the mask it leaves out the same number of drawn tokens, at
  most 16, and nowhere another number.
- Short: it leaves out the last drawn token, or tokens, of at least half of the stretches.

It is an error where tokens under the mask were not drawn, and put the gap beyond its limits.

## Why it matters
- An inverted mask trains the policy to write its prompts and its tools' answers.
- A policy that is never trained on the token that ends a response forgets to end one, and the responses grow.
- A mask that is off by one pairs each advantage with its neighbour.

## How to fix
- 1 marks what is trained; see whether the framework means the opposite (`tool_mask`, `loss_mask`, `ignore`).
- Build the mask from lengths, and not from ids that differ from the padding: where the padding is the end token, such a mask
  leaves out the end.

## When it can be wrong
- The engine gives logprobs of a text that it did not draw (SGLang with `logprob_start_len`), of the same length each time, and
  nothing beside it has one.
- You leave out the first tokens of each response on purpose.

## Seen in
karpathy/nanochat#810 and huggingface/trl#6357 (the sampled end token is masked out), mll-lab-nu/RAGEN#59 (the end token lies
outside of the mask), modelscope/ms-swift#8196 (a column shifted left by one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.mask_reading import MaskFault
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR085",
    "misplaced-mask",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and "response_mask" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    fault = evidence.causes.mask_fault
    if fault is None:
        return
    starts = evidence.rollouts.starts
    sequence = int((starts <= fault.first).sum()) - 1
    text, hint = _describe(fault)
    yield Problem(
        text,
        key=f"response_mask, sequence {sequence}, token {fault.first - int(starts[sequence])}",
        hint=hint,
        severity="error" if fault.kind == "inverted" or (fault.kind != "short" and evidence.causes.is_large) else None,
    )


def _describe(fault: MaskFault) -> tuple[str, str]:
    width = count(fault.tokens, "token")
    where = f"{fault.edges:,} of {count(fault.stretches, 'stretch', 'stretches')}"
    if fault.kind == "inverted":
        text = f"the response mask is inverted: the engine drew none of {count(fault.edges, 'token')} under it, and"
        return f"{text} {fault.tokens:,} that it leaves out", "exchange 0 and 1: 1 marks a token that the engine drew"
    if fault.kind == "late":
        text = f"the response mask begins {width} late in {where}: the engine drew what lies before"
        return text, "begin the mask at the first token of the response"
    if fault.kind == "early":
        text = f"the response mask lies {width} early in {where}: it begins before what the engine drew, and ends before its end"
        return text, f"move the mask {width} later"
    last = "the last token" if fault.tokens == 1 else f"the last {fault.tokens} tokens"
    text = f"the response mask leaves out {last} that the engine drew at the end of {where}"
    text += f", token {fault.token} each time" if fault.token is not None else ""
    return text, "build the mask from lengths, so that the token that ends a response is trained"
