"""The trainer does not know the token that ends the model's responses.

## What it checks
A model's generation_config.json may name several end tokens, and its chat template ends a turn with one of them. Where the trainer
knows the tokenizer's EOS alone (TRL to 1.9), and that is another token:

- `mask_truncated_completions` takes nearly all completions for cut ones and leaves them out of the loss;
- with `generate()` in place of vLLM, what follows the end stays in the loss.

It reads the model's generation_config.json, tokenizer and chat template, where they are on this machine.

## Why it matters
The engine stops at each of these tokens, so that the responses are whole. For Phi-3.5 TRL reports 97 % of them as cut.

## How to fix
Take TRL 1.16 or later, or set the tokenizer's EOS to the token that ends a turn (`eos_token="<|end|>"`).

## When it can be wrong
The job trains on text without a chat template: `--ignore JOB061`.

## Seen in
huggingface/trl#7039 (Phi-3.5, Gemma 3); the code of TRL f2cd57710 (`grpo_trainer.py`) and of the package 1.16.0
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB061",
    "uncounted-end",
    severity="error",
    on="job",
    when=lambda job: job["trainer.end_tokens"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    if job.text("trainer.end_tokens") == "all":
        return
    job.require_resolved("trainer.masks_truncated")
    checkpoint = job.checkpoints.get("checkpoint.model")
    if checkpoint is None or checkpoint.turn_ends is None or checkpoint.end_token is None:
        named = checkpoint.named if checkpoint else "the model"
        why = checkpoint.reason if checkpoint and checkpoint.reason else "it is not read"
        raise Skip(f"generation_config.json and the chat template of {named} say which tokens end a response: {why}")
    if not checkpoint.turn_ends or checkpoint.end_token in checkpoint.turn_ends:
        return
    setting = job["trainer.end_tokens"]
    ends = " and ".join(checkpoint.turn_ends)
    what = f"responses of {checkpoint.named} end with {ends}, and the trainer knows {checkpoint.end_token} alone"
    masks, is_dated = job.flag("trainer.masks_truncated"), setting.status != "unresolved"
    if not is_dated and not masks:
        raise Skip(f"{what}, or all: {setting.source}")
    effect = (
        f"nearly all count as cut, and mask_truncated_completions ({job['trainer.masks_truncated'].place}) leaves them out"
        if masks
        else "what follows the end stays in the loss"
    )
    release = setting.source.removeprefix("default of ") if is_dated else "if it is of a TRL before 1.16"
    yield job.problem(
        f"{what} ({release}): {effect}",
        at="trainer.masks_truncated" if masks else "checkpoint.model",
        hint=f"take TRL 1.16 or later{'' if is_dated else ' and say so (--framework-version)'}, or set the tokenizer's eos_token "
        f"to {checkpoint.turn_ends[0]}",
        severity=None if is_dated else "warning",
    )
