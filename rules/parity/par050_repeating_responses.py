"""Responses consist of one token, repeated, end in a loop, or are marks without words.

## What it checks
Of the responses of 16 tokens or more, at least half

- consist of one token: nine of ten tokens are the same one, and at least half of these responses repeat the same token;
- or end in a loop: the same up to 64 tokens, at least four times, over half of the response. That is a warning.
- or have hardly a word between their marks: of six or more of `, . ; : ! ?` at least 40 % follow another one, with nothing but
  spaces between (an ellipsis is one mark). That is a warning, and needs the texts (`--tokenizer`, `parity record`).

## Why it matters
- An engine that answers different prompts with one token over and over computes with broken weights: NaN makes it the first token
  of the vocabulary ("!!!!"), a buffer that was released or a tensor that was not loaded makes it some other. Logprobs may look
  well, for each repetition is likely once it has begun.
- Copied or exchanged layers, as wrong layer ids of a pipeline stage give them, make a model that writes commas and full stops, and
  finds that likely: SmolLM2-135M-Instruct with layers 0-14 in the place of 15-29 writes " division,  .,  , and ..,  ,  and.." at a
  mean logprob of -1.26.
- A sound model that samples at temperature 1 leaves a loop soon. When most responses of different prompts loop, weights were not
  loaded or mapped rightly, a stop token is not known, or the chat template is another one than the model was trained on.

The trainer trains on what it gets.

## How to fix
Print the texts (`ckptcheck parity judge FILE --tokenizer DIR`). Compare the engine's weights with the checkpoint (`ckptcheck refit
--attach`), and look in the trainer's log for the line that says that the checkpoint was loaded. If the weights are right, restart
the engine without its sleep mode: buffers that no update sends may be lost there. Try the instruct model of the same architecture.

## When it can be wrong
- A policy that has collapsed to one token does the same with its own weights: the first step's rollouts tell.
- Prompts that ask for a row of one token, or for lists or tables of one form.
- Small base models repeat themselves at low temperatures: one token is only a warning at temperature 0, and below 0.5 the rule does
  not look for loops.

## Seen in
slime docs/en/developer_guide/debug.md ("check if the generated rollout is coherent"; garbled output may be specific to the
pretrained model); sgl-project/sglang and vllm-project/vllm have many reports of "!!!!!!"
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from ckptcheck import Problem, Skip, rule
from ckptcheck.rollouts.coherence import LEAST, ResponseShape
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

ONE_TOKEN, LOOP = 0.9, 0.5
"""The share of a response that one token has, and that is a loop."""
WORDLESS = 0.4
"""The share of marks that follow another one; 6 of 24,000 pieces of 300 characters of real prose and code have it."""
COOL = 0.5
"""Below this temperature sound models loop."""


@rule("PAR050", "repeating-responses", severity="error", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    shapes = evidence.response_shapes
    temperature = evidence.rollouts.metadata.sampling.temperature
    if not shapes:
        raise Skip(f"no response has {LEAST} tokens")
    if repeated := _find_one_token(shapes):
        text = f" ({evidence.decode(repeated[0].token)})" if evidence.decode is not None else ""
        yield Problem(
            f"{len(repeated):,} of {count(len(shapes), 'response')} repeat token {repeated[0].token}{text} and say nothing else:"
            " the engine computes with broken weights, or the policy has collapsed",
            key=f"sequence {repeated[0].sequence}",
            severity="warning" if temperature == 0 else None,
            hint="compare the engine's weights with the checkpoint: ckptcheck attach",
        )
        return
    if wordless := {sequence: share for sequence, share in evidence.wordless_marks.items() if share >= WORDLESS}:
        worst_sequence = max(wordless, key=lambda sequence: wordless[sequence])
        if 2 * len(wordless) >= len(evidence.wordless_marks):
            yield Problem(
                f"{len(wordless):,} of {count(len(evidence.wordless_marks), 'response')} are marks without words: of those of"
                f" sequence {worst_sequence} {wordless[worst_sequence]:.0%} follow another mark",
                key=f"sequence {worst_sequence}",
                severity="warning",
                hint="compare the engine's weights with the checkpoint, layer by layer: ckptcheck attach",
            )
            return
    if temperature is not None and temperature < COOL:
        raise Skip(f"at temperature {temperature:g} sound models may loop")
    loops = [shape for shape in shapes if shape.loop_share >= LOOP]
    if 2 * len(loops) >= len(shapes):
        worst = max(loops, key=lambda shape: shape.loop_share)
        yield Problem(
            f"{len(loops):,} of {count(len(shapes), 'response')} end in a loop; that of sequence {worst.sequence} repeats"
            f" {count(worst.period, 'token')} over {worst.loop_share:.0%} of the response",
            key=f"sequence {worst.sequence}",
            severity="warning",
            hint="print the texts with --tokenizer, and compare the engine's weights with the checkpoint",
        )


def _find_one_token(shapes: Sequence[ResponseShape]) -> list[ResponseShape]:
    """Return the responses that repeat the one token that most responses consist of; [] where there is no such token."""
    constant = [shape for shape in shapes if shape.token_share >= ONE_TOKEN]
    if not constant or 2 * len(constant) < len(shapes):
        return []
    token, number = Counter(shape.token for shape in constant).most_common(1)[0]
    return [shape for shape in constant if shape.token == token] if 2 * number >= len(constant) else []
