"""Writes the texts of responses, so that a person sees whether a model speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ckptcheck.linter.report import Section
from ckptcheck.rollouts.rollouts import Rollouts

Decode = Callable[[Sequence[int]], str]
"""Token ids → their text."""
SHOWN = 3
"""Number of responses that are shown."""
TOKENS = 48
"""Most tokens of a response that are shown."""
PROMPT_TOKENS = 12
"""Most tokens of a prompt that are shown: its end."""


@dataclass(frozen=True)
class ResponseText:
    """The end of a prompt, and the beginning of its response."""

    sequence: int
    prompt: str
    response: str
    logprob: float | None
    """Mean logprob of the response, by the engine or else the trainer; None: there is none."""


def read_texts(rollouts: Rollouts, decode: Decode) -> Iterator[ResponseText]:
    """Yield the texts of the first sequences."""
    import numpy as np

    column = next((name for name in ("engine_logprobs", "trainer_logprobs") if name in rollouts), None)
    for sequence in range(min(SHOWN, rollouts.sequence_count)):
        inside = rollouts.sequence(sequence)
        tokens, prompt = rollouts.tokens[inside], int(rollouts.prompt_lengths[sequence])
        values = rollouts.columns[column][inside][prompt:] if column is not None else np.zeros(0)
        values = values[np.isfinite(values)]
        cut = "…" if len(tokens) - prompt > TOKENS else ""
        yield ResponseText(
            sequence,
            repr(decode([token for token in tokens[:prompt][-PROMPT_TOKENS:].tolist() if token >= 0])),
            repr(decode([token for token in tokens[prompt:][:TOKENS].tolist() if token >= 0])) + cut,
            float(values.mean()) if len(values) else None,
        )


def build_texts_section(rollouts: Rollouts, decode: Decode) -> Section:
    """Build the table of texts."""
    rows = tuple(
        (str(text.sequence), text.prompt, text.response, text.logprob) for text in read_texts(rollouts, decode)
    )
    return Section("texts", ("sequence", "end of the prompt", "response", "mean logprob"), rows)
