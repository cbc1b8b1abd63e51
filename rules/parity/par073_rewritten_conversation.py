"""Rendering the conversation again gives other tokens than the recorded ones.

## What it checks
With `--checkpoint`: the rule splits the text of each sequence into turns, at the texts that the chat template writes between them,
and renders the turns again up to the last answer. The recorded text has to begin with the result. The rule looks at the first 256
sequences, and leaves out those that are no conversation of this template.

## Why it matters
A trainer, a scorer or a reward model that renders the messages again sees another context than the engine did: the thinking of
earlier answers is gone, or an empty one was added. Its logprobs are of other tokens, and masks lie beside the answers.

## How to fix
Keep the generated tokens of all turns (token in, token out). Or render the conversation again for each turn, as a server does, and
train each turn as a sequence of its own. TOK016 reports a template that rewrites turns.

## When it can be wrong
- The job rendered with another template, or with variables of its own (`enable_thinking`).
- A turn whose text contains the template's separators counts as two.

## Seen in
verl-project/verl#6854, NVIDIA-NeMo/RL#2821, OpenPipe/ART#726
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR073",
    "rewritten-conversation",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.drawn_by is not None,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    trip = evidence.round_trip
    if not trip.conversations:
        raise Skip("no sequence reads as a conversation of the checkpoint's chat template")
    if not trip.other_renderings:
        return
    first = trip.other_renderings[0]
    text = f"{len(trip.other_renderings):,} of {count(trip.conversations, 'conversation')} "
    text += "is" if len(trip.other_renderings) == 1 else "are"
    text += f" another text when rendered again, the first from turn {first.turn} ({first.role}) on: "
    if first.drops_thinking:
        text += "the template drops what was thought there"
    else:
        text += f"{first.rendered!r} where {first.recorded!r} was recorded"
    yield Problem(
        text,
        key=f"sequence {first.sequence}, token {first.position}",
        hint="keep the tokens of earlier turns as they were generated, and do not render them again",
    )
