"""A training step can learn nothing from these rollouts.

## What it checks
Where rewards or advantages are recorded, of the sequences that have trained tokens:

- The advantage of a trained token is NaN or infinite: an error.
- All advantages are 0: an error where rewards differ within a group, that is, between responses to one prompt; else a warning.
  Without rewards and groups nothing is said, for such zeros may be a place that was never filled.
- Without advantages: all rewards are equal, or those of every group are, over at least 8 responses. A warning.
- Every response ended by its length: by their finish reasons, or because all have one length and none ends in a stop token that is
  known, or that length is the longest that sampling allowed. A warning.
  Where the step learns nothing and all of 8 or more responses have one length, this is named as the cause.

Some groups without a signal are usual. Their share is a curve over the steps.

## Why it matters
One advantage that is NaN makes the loss NaN. Where every advantage is 0 there is no gradient, and the loss of the job looks well:
it is 0. Often the longest response is too short for an answer, so that no answer is ever right.

## How to fix
- Responses that are cut off: raise the longest response (TRL `max_completion_length`, verl `data.max_response_length`), and check
  that the engine knows the stop tokens.
- Equal rewards: look at texts and at the reward function; choose prompts that are neither too easy nor too hard.
- Advantages of 0 with rewards that differ: compare how advantages are grouped; a prompt with one response has nothing to compare.

## When it can be wrong
With a critic, equal rewards can still give advantages: record them. A few prompts may all be solved, or none, in one step.

## Seen in
huggingface/trl#5697 (97 to 99 % of responses cut off at 256 tokens, reward, loss and gradient 0), #3452, #5759;
modelscope/ms-swift#4950; dllm-reasoning/d1#19 (groups of one response)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.learning_signal import FEWEST, LearningSignal
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR081",
    "missing-signal",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool({"rewards", "advantages"} & evidence.rollouts.columns.keys()),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    signal = evidence.learning_signal
    if signal is None:
        raise Skip("no token is trained, or no reward is known")
    if signal.broken_tokens:
        assert signal.lowest is not None
        first = int(signal.sequences[(signal.lowest != signal.lowest).argmax()])
        yield Problem(
            f"{count(signal.broken_tokens, 'trained token')} in {count(int((signal.lowest != signal.lowest).sum()), 'sequence')}"
            " have an advantage that is NaN or infinite, which makes the loss NaN",
            key=f"advantages, sequence {first}",
            hint="look for a group of one response, or one whose rewards are NaN, where the advantages are computed",
        )
        return
    longest = evidence.rollouts.metadata.sampling.max_tokens
    cut_off, silence = _describe_cut_off(evidence, signal), _describe_silence(signal)
    if silence is not None and (lost := _describe_lost_rewards(signal)) is not None:
        yield Problem(
            f"{silence}, although {lost}: the step teaches nothing", hint="compare how advantages are grouped"
        )
    elif silence is not None:
        yield Problem(
            f"{f'{cut_off}, and ' if cut_off else ''}{silence}: the step teaches nothing",
            severity="warning",
            hint="let responses be longer, and check the stop tokens"
            if cut_off
            else "look at the texts and the rewards",
        )
    elif cut_off and (signal.cut_off == 1 or evidence.stop_tokens or signal.limit == longest):
        yield Problem(cut_off, severity="warning", hint="let responses be longer, and check the stop tokens")


def _describe_silence(signal: LearningSignal) -> str | None:
    """Say that no sequence teaches anything; None where one does, or that is not known."""
    number, everyone = len(signal.sequences), slice(None)
    if signal.lowest is not None:
        if number < 2 or not signal.is_silent(everyone) or (signal.rewards is None and not signal.groups):
            return None
        if signal.have_equal_rewards(everyone):
            return f"all {number:,} rewards are {_first_reward(signal):g} and all advantages 0"
        return f"all advantages of {count(number, 'sequence')} are 0"
    if number < FEWEST:
        return None
    if signal.have_equal_rewards(everyone):
        return f"all {number:,} rewards are {_first_reward(signal):g}"
    if signal.groups and sum(map(len, signal.groups)) == number and signal.silent_groups == 1:
        return f"the rewards of each of {count(len(signal.groups), 'group')} of one prompt are equal"
    return None


def _first_reward(signal: LearningSignal) -> float:
    assert signal.rewards is not None
    return float(signal.rewards[0])


def _describe_lost_rewards(signal: LearningSignal) -> str | None:
    """Say that rewards differ from which advantages other than 0 follow; None where they do not."""
    import numpy as np

    if signal.lowest is None or signal.rewards is None or not np.isfinite(signal.rewards).all():
        return None
    differing = [group for group in signal.groups if not signal.have_equal_rewards(group)]
    if differing:
        return f"rewards differ within {len(differing):,} of {count(len(signal.groups), 'group')} of one prompt"
    if not signal.groups and not signal.have_equal_rewards(slice(None)):
        return f"rewards reach from {signal.rewards.min():g} to {signal.rewards.max():g}, and every prompt has one response"
    return None


def _describe_cut_off(evidence: RolloutEvidence, signal: LearningSignal) -> str | None:
    """Say that every response ended by its length; None where one did not."""
    rollouts = evidence.rollouts
    lasts = rollouts.tokens[rollouts.starts[signal.sequences + 1] - 1]
    if signal.cut_off not in (None, 1) or any(token in evidence.stop_tokens for token in lasts.tolist()):
        return None
    if signal.limit is not None:
        return f"all {count(len(signal.sequences), 'response')} are cut off at {signal.limit:,} tokens"
    return f"all {count(len(signal.sequences), 'response')} are cut off" if signal.cut_off == 1 else None
