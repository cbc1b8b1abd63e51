"""Responses consist of one token, repeated, end in a loop, or are no text.

## What it checks
Of the responses of 16 tokens or more, at least half

- consist of one token: nine of ten tokens are the same one, and at least half of these responses repeat the same token;
- or end in a loop: the same up to 64 tokens, at least four times, over half of the response. That is a warning.
- or are no text, which is a warning and needs the texts (`--tokenizer`, `parity record`):
  - marks without words: of six or more of `, . ; : ! ?` at least 40 % follow another one, with nothing but spaces between (an
    ellipsis is one mark);
  - pieces of rare words put together: words of eight Latin letters or more in the mean, and a median token behind the first fifth
    of the vocabulary;
  - control characters;
  - hardly a word but the commonest: of twelve tokens or more with Latin letters fewer than 15 % are none of the first thousand
    of the vocabulary;
  - stutter: one of ten tokens, with a letter or a mark, repeats the one before, or one of five is a blank that does.

## Why it matters
- An engine that answers different prompts with one token over and over computes with broken weights: NaN makes it the first token
  of the vocabulary ("!!!!"), a buffer that was released or a tensor that was not loaded makes it some other. Logprobs may look
  well, for each repetition is likely once it has begun.
- A broken model finds its own text likely. SmolLM2-135M-Instruct, whose own text at temperature 1 has a mean logprob of -2.7
  (-3.3 after prompts without its template, -3.3 with weights of 4 bits):

| fault | what it writes | its mean logprob |
|---|---|---|
| layers 0-14 in the place of 15-29 | ` division,  .,  , and ..,  ,  and..` | -1.3 |
| every layer one too far | `.-. of.......,.. of. of... is of. of of` | -1.2 |
| layers 10-19 in the place of 20-29 | ` I I I I, I I I.  I I I I I.` | -0.5 |
| feed-forward parts 0-14 in the place of 15-29 | ` on the I-----, a not- ( in- and,` | -1.2 |
| gate and up exchanged | `rapists of ndarray rapistsenoid0` | -3.2 |
| halves of down_proj exchanged | `zeesasmodyearseshuckinghamushoppy` | -2.9 |
| norms of ones | ` combine,,,,,,,,,- vers` | -3.1 |
| rows of the embedding one too far | control characters between words | -3.8 |

  A rotary embedding in the wrong order (-5.3) still writes words, and so do ten layers without attention (-4.8): see PAR027. Ten
  without their feed-forward part (-4.2), one random layer of thirty (-3.7), another rotary base (-3.9), layers in the reverse order
  (-1.9) and a wrong scale in two (-3.1) show where a trainer scores them.
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
from ckptcheck.rollouts.coherence import LEAST, NONSENSE, ResponseShape
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

ONE_TOKEN, LOOP = 0.9, 0.5
"""The share of a response that one token has, and that is a loop."""
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
    if signs := _count_signs(evidence, is_cool=temperature is not None and temperature < COOL):
        yield Problem(
            f"{sum(map(len, signs.values())):,} of {count(len(evidence.nonsense), 'response')} are no text: "
            + ", ".join(f"{NONSENSE[sign]} ({len(those):,}, as sequence {those[0]})" for sign, those in signs.items()),
            key=f"sequence {next(iter(signs.values()))[0]}",
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


def _count_signs(evidence: RolloutEvidence, *, is_cool: bool) -> dict[str, list[int]]:
    """Return sign → the sequences that have it; {} where that is less than half. is_cool: sound models may stutter."""
    signs: dict[str, list[int]] = {}
    for sequence, sign in evidence.nonsense.items():
        if sign is not None and not (is_cool and sign == "stutter"):
            signs.setdefault(sign, []).append(sequence)
    return signs if 2 * sum(map(len, signs.values())) >= len(evidence.nonsense) else {}


def _find_one_token(shapes: Sequence[ResponseShape]) -> list[ResponseShape]:
    """Return the responses that repeat the one token that most responses consist of; [] where there is no such token."""
    constant = [shape for shape in shapes if shape.token_share >= ONE_TOKEN]
    if not constant or 2 * len(constant) < len(shapes):
        return []
    token, number = Counter(shape.token for shape in constant).most_common(1)[0]
    return [shape for shape in constant if shape.token == token] if 2 * number >= len(constant) else []
