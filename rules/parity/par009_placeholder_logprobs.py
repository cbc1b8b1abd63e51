"""Tokens under the response mask have a placeholder in place of a logprob.

## What it checks
- Stretches of tokens under the response mask in which a side gives exactly 0, or one other number at least 4 times in a row,
  while the two sides are more than 0.5 nats apart on some of them. There are at least 4 such far tokens, and among placeholders
  they are 3 times as frequent as among other tokens.
- In every sequence of at least 8 compared tokens, neither side gives all tokens the same logprob.

## Why it matters
- What a tool, an environment or a template wrote has no logprob of the engine. Frameworks put 0 there, a probability of 1. Under
  the mask it is trained as if the policy had written it, with a ratio of e to the trainer's logprob.
- A placeholder compares like a number. Against zeros the gap is the entropy of the model. If both sides hold the same placeholder
  the gap is 0, and everything passes.

## How to fix
- Take these tokens out of the response mask (`tool_mask` of TRL, `response_mask` of verl, `loss_mask` of slime).
- Where the engine did draw them, request their logprobs (`logprobs=0` in vLLM, `return_logprob` in SGLang), and let the trainer
  score what it skips now.

## When it can be wrong
- A grammar that leaves one token, or a filter (top-p, top-k, min-p) that keeps one, gives a processed logprob of 0 to a token
  that the engine did draw. Its ratio is as wrong, and masking it, or raw logprobs, mend that.
- A greedy engine that reports processed logprobs gives 0 for every token. Where the temperature is below 0.1 or top-k is 1, the
  rule therefore checks only the trainer.
- A sure token that the engine drew beside such a stretch has a logprob of 0 as well, and is counted with it.

## Seen in
unslothai/unsloth#5673 (tokens of an environment under TRL's mask), RAGEN-AI/RAGEN#71 (text of tools), verl-project/verl#3805
(padding under the mask); NeMo-RL with force_on_policy_ratio skips the forward pass and reports placeholders; verl#7196: bypass
mode removes the metrics where the gap is largest
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.rollouts.far_tokens import PlaceholderRuns
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, list_logprob_columns
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST = 8
"""Fewest compared tokens of a sequence in which equal logprobs are no coincidence."""
MOST_NAMES = 1000
"""Most stretches that a finding names for programs."""


@rule("PAR009", "placeholder-logprobs", severity="error", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    causes = evidence.causes if evidence.metrics_or_none is not None else None
    runs_of = {f"{runs.side}_logprobs": runs for runs in causes.placeholder_runs} if causes is not None else {}
    fault = causes.mask_fault if causes is not None else None
    if fault is not None and fault.kind == "inverted":
        return  # PAR085 names it
    is_greedy = evidence.rollouts.metadata.sampling.temperature == 0
    for column in list_logprob_columns(evidence):
        is_lacking = causes is not None and causes.lacking_lists is not None  # PAR028 names it
        if (is_greedy or is_lacking) and column == "engine_logprobs":
            continue
        constant = dict(_list_constant_sequences(evidence, column))
        if (runs := runs_of.get(column)) is not None:
            owners = np.searchsorted(evidence.rollouts.starts, runs.begins, "right") - 1
            if not set(owners.tolist()) <= constant.keys():
                # PAR085 names a mask that is off by as many tokens
                if fault is None or not np.median(runs.lengths) <= fault.tokens:
                    yield _describe_runs(evidence, runs, owners)
                continue
        if constant:
            sequence, value = next(iter(constant.items()))
            text = f"{count(len(constant), 'sequence')} of {evidence.rollouts.sequence_count:,}: "
            text += f"{describe_logprob_column(column)} is {value:g} for every token"
            yield Problem(
                text,
                key=f"{column}, sequence {sequence}",
                hint="ask the engine for logprobs, and let the trainer score",
            )


def _list_constant_sequences(evidence: RolloutEvidence, column: str) -> Iterator[tuple[int, float]]:
    """Yield number and logprob of each sequence whose compared tokens have one logprob."""
    import numpy as np

    for block in evidence.rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        if not len(indices):
            continue
        values = block.column(column)[indices]
        begins, lengths, sequences, _ = block.split(indices)
        is_constant = np.minimum.reduceat(values, begins) == np.maximum.reduceat(values, begins)
        for run in np.flatnonzero(is_constant & (lengths >= LEAST)).tolist():
            yield int(block.first + sequences[run]), float(values[begins[run]])


def _describe_runs(evidence: RolloutEvidence, runs: PlaceholderRuns, owners: NDArray[np.int64]) -> Problem:
    """Return the finding of some stretches. owners: int64, the sequence of each."""
    import numpy as np

    rollouts, indices = evidence.rollouts, runs.indices
    shortest, longest = int(runs.lengths.min()), int(runs.lengths.max())
    sequences = np.unique(owners)
    text = f"{count(len(indices), 'token')} under the response mask, in {count(len(owners), 'run')} of "
    text += count(longest, "token") if shortest == longest else f"{shortest:,} to {longest:,} tokens"
    text += f" in {len(sequences):,} of {count(rollouts.sequence_count, 'sequence')}, "
    text += "has" if len(indices) == 1 else "have"
    text += f" {'an' if runs.side == 'engine' else 'a'} {runs.side} logprob of exactly {runs.value:g}"
    ids = np.unique(rollouts.tokens[indices])
    text += f", all of token {ids[0]}" if len(ids) == 1 else ""
    drew = runs.side == rollouts.metadata.sampled_by
    text += f": the {runs.side} never drew them" if drew else f": the {runs.side} did not score them"
    left = evidence.causes.measure_without(indices)
    if left is not None:
        text += (
            f"; without them mult_prob_error is {left.mult_prob_error:.5g}, not {evidence.metrics.mult_prob_error:.5g}"
        )
    begins = (runs.begins - rollouts.starts[owners]).tolist()
    names = [
        f"sequence {owner}, tokens {begin} to {begin + length - 1}"
        for owner, begin, length in zip(owners.tolist(), begins, runs.lengths.tolist(), strict=True)
    ][:MOST_NAMES]
    hint = "take them out of the response mask: only what the engine drew is trained"
    return Problem(
        text,
        key=f"{runs.side}_logprobs, {names[0]}",
        hint=hint if drew else f"let the {runs.side} score them, or take them out of the response mask",
        names=tuple(names),
    )
