"""Samples tokens from a trainer's logits, and makes its output head compute in float32."""

from __future__ import annotations

from typing import Any

import torch


def sample_token(logits: Any, temperature: float, generator: Any, top_p: float = 1.0, top_k: int = 0) -> int:
    """Sample a token from softmax(logits / temperature), on the CPU so that a seed gives the same token on every device.

    temperature: 0 is greedy. top_k: keep so many of the most likely tokens, 0 keeps all. top_p: then keep the fewest of the most
    likely tokens whose probabilities sum to this share. Engines apply them in the same order.
    """
    if temperature == 0:
        return int(logits.argmax())
    weights = (logits.double().cpu() / temperature).softmax(-1)
    if top_k or top_p < 1:
        top, ids = weights.sort(descending=True)
        top = top[: top_k or None]
        mass_before = top.cumsum(-1) - top
        top = top[: max(1, int((mass_before < top_p * top.sum()).sum()))]
        weights = torch.zeros_like(weights).scatter(0, ids[: len(top)], top)
    return int(torch.multinomial(weights, 1, generator=generator))


def upcast_head(head: Any) -> None:
    """Make an output head compute in float32: cast its inputs and its weight, as trainers with an fp32 head do."""

    def forward(hidden: Any) -> Any:
        bias = getattr(head, "bias", None)
        weight = head.weight.float()
        return torch.nn.functional.linear(hidden.float(), weight, None if bias is None else bias.float())

    head.forward = forward


def upcast_parallel_head(head: Any) -> None:
    """Do the same with megatron-core's ColumnParallelLinear, whose caller passes a tied embedding's weight."""
    original = head.forward

    def forward(hidden: Any, weight: Any = None, **more: Any) -> Any:
        return original(hidden.float(), weight=(head.weight if weight is None else weight).float(), **more)

    head.forward = forward
