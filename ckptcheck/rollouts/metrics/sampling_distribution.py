"""Computes the distribution that an engine samples from, out of the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def processed(table: NDArray[Any], temperature: float, top_p: float = 1.0, top_k: int = 0) -> NDArray[Any]:
    """Apply temperature, top-k and top-p to rows [tokens, vocabulary], and return normalised logprobs.

    table: raw logprobs or logits. The order is that of vLLM and SGLang: temperature, top-k, top-p. The token whose probability
    takes the sum over p stays.
    """
    import numpy as np

    scaled = normal(table / temperature)
    if top_k > 0:
        least = np.sort(scaled, axis=-1)[:, -min(top_k, scaled.shape[-1])][:, None]
        scaled = normal(np.where(scaled >= least, scaled, -np.inf))
    if top_p < 1:
        order = np.argsort(-scaled, axis=-1)
        ordered = np.exp(np.take_along_axis(scaled, order, -1))
        inside_nucleus = np.cumsum(ordered, -1) - ordered < top_p
        mask = np.zeros_like(inside_nucleus)
        np.put_along_axis(mask, order, inside_nucleus, -1)
        scaled = normal(np.where(mask, scaled, -np.inf))
    return scaled


def penalize(
    table: NDArray[Any],
    tokens: Sequence[int],
    presence: float,
    frequency: float,
    repetition: float = 1.0,
    prompt: Sequence[int] = (),
) -> NDArray[Any]:
    """Apply penalties to the rows [tokens, vocabulary] of a response; the result is not normalised.

    table: raw logprobs or logits; with a repetition penalty, logits. tokens: the ids of the response; row i is penalised for the
    tokens before i, and by the repetition penalty for those of the prompt too. Source: vllm/model_executor/layers/utils.py
    `apply_penalties`, which comes before the temperature.
    """
    import numpy as np

    penalized, counts = np.array(table, np.float64), np.zeros(table.shape[-1])
    seen = np.zeros(table.shape[-1], bool)
    seen[list(prompt)] = True
    for row, token in zip(penalized, tokens, strict=True):
        if repetition != 1:
            there = seen | (counts > 0)
            row[there] = np.where(row[there] > 0, row[there] / repetition, row[there] * repetition)
        row -= frequency * counts + presence * (counts > 0)
        counts[token] += 1
    return penalized


def normal(table: NDArray[Any]) -> NDArray[Any]:
    """Return log_softmax of every row."""
    import numpy as np

    most = table.max(axis=-1, keepdims=True)
    result: NDArray[Any] = table - most - np.log(np.exp(table - most).sum(axis=-1, keepdims=True))
    return result
