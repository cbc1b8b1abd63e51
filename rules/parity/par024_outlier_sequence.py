"""A few sequences are outliers while the others agree.

## What it checks
Every sequence with at least 16 compared tokens. It is an outlier if its mean exp|trainer - engine| is above 2 (`--set
max-sequence-error`), or if its mean |Δ| is above 0.05 nats and 20 times that of the median sequence. Tokens whose gap has a cause
of their own (PAR007, PAR009, PAR028, PAR086) do not count.

Of several outliers the rule says what nine tenths of them and few others share, if a file records it: prompt, length, weight
version, finish reason, or their place in the file (a range, or every nth sequence: an engine or a rank). It says whether the gap
begins within the response, as after a preemption.

## Why it matters
- A mean over a batch hides one sequence that an engine with old weights answered, or that came from a stale prefix, after an
  abort, or through a broken expert.
- NeMo-RL's recipes mask such sequences, so the run goes on with the others and hides the cause.

## How to fix
Look at what they have in common. Repeat one of these requests alone, and score it on both sides.

## When it can be wrong
Where half of the sequences or more are that bad and the gap of the file is beyond its limits, only PAR020 reports it. Where they
are fewer, PAR020 judges the others.

## Seen in
ROCm/ATOM#2028 (38 of 64 requests, after preemptions), NeMo-RL#4243 (60 to 71 % of sequences masked at 2), verl#7904 (32 of 52
samples), NeMo-RL diagnostics 2 (above 300, healthy 1.007)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.gap_causes import LEAST_OF_SEQUENCE
from ckptcheck.rollouts.outlier_traits import find_common_begin, find_sequence_trait
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule("PAR024", "outlier-sequence", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    evidence.remaining_gap  # noqa: B018 - raises Skip where nothing is left to judge
    causes = evidence.causes
    if (outliers := causes.outliers) is None:
        raise Skip(f"no sequence has {LEAST_OF_SEQUENCE} compared tokens")
    bad, judged, gap = outliers.bad, outliers.judged, outliers.gap
    if not len(bad) or (not outliers.are_few and causes.is_large):
        return  # where most of them are, PAR020 reports the gap of all
    worst = int(bad[gap.sequence_error[bad].argmax()])
    predicate = "is an outlier" if len(bad) == 1 else "are outliers"
    text = f"{len(bad):,} of {count(len(judged), 'sequence')} {predicate}: the worst has a mult_prob_error of "
    text += f"{gap.sequence_error[worst]:.4g} and a mean |Δ| of {gap.sequence_abs[worst]:.3g} over "
    text += f"{count(int(gap.sequence_tokens[worst]), 'token')}, the median sequence a |Δ| of {outliers.median:.3g}"
    hint = "score one of them alone on both sides, and look up in the logs which engine answered it, and when"
    if len(bad) == 1:
        hint = (
            "score this sequence alone on both sides, and see what happened to its request: preemption, abort, update"
        )
    if (found := find_sequence_trait(evidence.rollouts, bad, judged)) is not None:
        text += (
            f"; {found.bad:,} of them are {found.trait.phrase}, as are {found.others:,} of {found.all_others:,} others"
        )
        hint = found.trait.hint
    if (begin := find_common_begin(evidence.rollouts, causes.far, bad)) is not None:
        text += f"; {'its' if len(bad) == 1 else 'their'} gap begins within the response, {'at' if len(bad) == 1 else 'first at'}"
        text += f" token {begin[1]:,} of sequence {begin[0]}"
        if found is None:
            hint = "see what happened to the request at that token: a preemption, an update of the weights, an abort"
    yield Problem(text, key=f"sequence {worst}", hint=hint)
