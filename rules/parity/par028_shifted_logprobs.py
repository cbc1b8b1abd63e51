"""The two sides agree better if one is shifted by some tokens.

## What it checks
In every sequence with a gap above 0.05 nats (of more than 256 of them a sample): the shift at which the two sides correlate best,
and shifts by one token, of the whole sequence and of what follows its first token with a gap. The rule reports a shift that
removes three quarters of the mean |Δ| over at least 32 tokens, and of the tokens that are more than 0.1 nats apart. Shorter
sequences are put together and tried with a shift by one token.

Before that it tries whether the engine's list of logprobs has no entries for the prompt, or for later tokens outside of the
response mask, such as a turn of a tool: then the shift grows from turn to turn. It reports that where it fits nine tenths of the
sequences with a gap.

## Why it matters
A logit predicts the next token. Code that forgets that, or accounts for it twice, pairs every logprob with its neighbour's. A
list of logprobs that lacks those of a prompt, or of a turn of a tool, is moved by their number. The numbers look plausible, but
the ratios are noise.

## How to fix
- By one token: gather logits[i - 1] at tokens[i]. Do not shift labels again that a data loader has already shifted.
- By more: give tokens that the engine did not draw a logprob of 0, so that the list has one for each token.

## When it can be wrong
- Text that repeats itself agrees with a copy of itself. The rule looks only where the unshifted gap is large.
- Of a sequence of fewer than 32 tokens that is shifted by more than one, the rule only says that it has a gap. Where no other
  sequence is shifted, it shows as a large gap without a cause.

## Seen in
modelscope/ms-swift#8196 (trainer logprobs shifted left by one), VeOmni#917 (labels shifted twice; differences of 12 to 16),
jingyaogong/minimind#850 (a text between two turns cut at another token than it begins at)
"""

from collections.abc import Iterator
from statistics import mode

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.metrics.shift import LEAST
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule("PAR028", "shifted-logprobs", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if evidence.metrics.tokens < LEAST:
        raise Skip(f"only {count(evidence.metrics.tokens, 'token')} can be compared")
    if (lacking := evidence.causes.lacking_lists) is not None:
        text = f"in {len(lacking.sequences):,} of {count(lacking.tried, 'sequence')} with a gap the engine's logprobs have no"
        what = "the prompt" if lacking.from_prompt else "the tokens outside of the response mask"
        text += f" entries for {what}: matched with the tokens under the response mask"
        text += f" |Δ| is {lacking.fitting:.3g} nats, as recorded {lacking.recorded:.3g}"
        hint = "give each token one logprob, 0 where the engine drew none"
        yield Problem(text, key=f"sequence {lacking.sequences[0]}", hint=hint)
        return
    search = evidence.causes.shifts
    if not search.shifts:
        return
    distances = [shift.tokens for shift in search.shifts]
    usual = mode(distances)
    pairs = sum(shift.pairs for shift in search.shifts)
    shifted, unshifted = (
        sum(shift.pairs * gap for shift, gap in zip(search.shifts, gaps, strict=True)) / pairs
        for gaps in ([shift.shifted for shift in search.shifts], [shift.unshifted for shift in search.shifts])
    )
    sequences = [sequence for shift in search.shifts for sequence in shift.sequences]
    distance = "one token" if abs(usual) == 1 else count(abs(usual), "token")
    if (same := distances.count(usual)) < len(distances):
        distance = f"{min(map(abs, distances)):,} to {max(map(abs, distances)):,} tokens"
    text = f"the engine's logprobs agree with the trainer's of {distance} {'later' if usual > 0 else 'earlier'}"
    begins = sum(shift.begin > 0 for shift in search.shifts)
    total, is_sample = evidence.metrics.sequences, search.tried < len(search.suspicious)
    if len(sequences) < total or begins:
        text += f" in {len(sequences):,} of {count(search.tried if is_sample else total, 'sequence')}"
        text += " that were tried" if is_sample else ""
    if begins:
        first = next(shift for shift in search.shifts if shift.begin)
        where = "" if begins == len(sequences) else f" in {begins:,} of them"
        text += f", from a token on{where} (token {first.begin} of sequence {first.sequences[0]})"
    if unexplained := search.tried - len(sequences):
        text += f" (no single shift explains {unexplained:,} more with a gap)"
    text += f": |Δ| is {shifted:.3g} nats there, and {unshifted:.3g} unshifted"
    hint = "logits[i - 1] give the logprob of tokens[i]: move one side"
    if abs(usual) != 1 or same < len(distances):
        hint = "give each token one logprob, 0 where the engine drew none, and count from the same token on both sides"
    yield Problem(text, key=None if len(sequences) == total else f"sequence {sequences[0]}", hint=hint)
