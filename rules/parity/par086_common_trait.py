"""The tokens that the two sides do not agree on have something in common.

## What it checks
The tokens on which the two sides are more than 0.5, 1 or 2 nats apart and that no other rule explains (wrong masks, placeholders,
shifts), if there are at least 8 of them and they are at most a fifth of all. Nine tenths of them, and at most a fifth of the
others, share one of:

- the first tokens of a response, of a turn after another, or after a change of the weight version; the last tokens of a response
- a position from which on they lie, or its rest modulo 16, 32, … 4,096 (blocks of a cache, chunks of a prefill)
- the token id, the weight version, an expert of a layer that the engine or the trainer routed to

So many of them share it by chance with a probability below one in a million, counted over all traits that were tried, and over
sequences where neighbours depend on each other. At least a quarter of the tokens with the trait are apart, unless the gap of the
file is beyond its limits. Then this is an error.

## Why it matters
One number for a whole file hides where a gap comes from, and a few tokens among a million move no mean. A common trait names the
part that is wrong: a cache, a template between turns, a row of the embedding, an expert, an update under way.

## How to fix
Look at the part that the hint names, and repeat the step: the trait has to be gone. `--tokenizer DIR` shows the tokens.

## When it can be wrong
What they have in common may follow from something that the file does not record: the first tokens of a turn may be wrong because
of the text before them.

## Seen in
marin-community/marin#1879 (the first token of each response), ROCm/ATOM#2028 (requests that were preempted, a cache's blocks),
verl-project/verl#5229 (single turns of a conversation), tenstorrent/tt-metal#54413 (blocks of a cache at some lengths)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule("PAR086", "common-trait", severity="warning", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if evidence.metrics_or_none is None:
        raise Skip("no token could be compared")
    causes = evidence.causes
    if (found := causes.trait) is None:
        return
    apart = f"more than {found.level:g} {'nat' if found.level == 1 else 'nats'} apart"
    text = f"{found.bad:,} of {count(found.all_bad, 'token')} that are {apart} are {found.trait.phrase}, as are"
    text += f" {found.others:,} of {found.all_others:,} others"
    if (left := causes.gap_of_sequences) is not None:
        text += (
            f"; without such tokens mult_prob_error is {left.mult_prob_error:.5g}, not {causes.gap.mult_prob_error:.5g}"
        )
    yield Problem(text, hint=found.trait.hint, severity="error" if causes.is_large else None)
