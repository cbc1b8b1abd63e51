"""How a trainer draws tokens, and how its head is made to compute in float32."""

from __future__ import annotations

from typing import Any

import torch


def chosen(logits: Any, temperature: float, die: Any, top_p: float = 1.0, top_k: int = 0) -> int:
    """Return a token drawn from softmax(logits / temperature), on the CPU so that a seed means the same everywhere; 0: greedy.

    top_k: of so many of the likeliest, 0: of all; then top_p: of the fewest of the likeliest that have this share, as engines do.
    """
    if temperature == 0:
        return int(logits.argmax())
    weights = (logits.double().cpu() / temperature).softmax(-1)
    if top_k or top_p < 1:
        kept, ids = weights.sort(descending=True)
        kept = kept[: top_k or None]
        before = kept.cumsum(-1) - kept
        kept = kept[: max(1, int((before < top_p * kept.sum()).sum()))]
        weights = torch.zeros_like(weights).scatter(0, ids[: len(kept)], kept)
    return int(torch.multinomial(weights, 1, generator=die))


def widen(head: Any) -> None:
    """Have an output head compute in float32: its inputs and its weight are cast, as trainers with an fp32 head do."""

    def forward(hidden: Any) -> Any:
        bias = getattr(head, "bias", None)
        weight = head.weight.float()
        return torch.nn.functional.linear(hidden.float(), weight, None if bias is None else bias.float())

    head.forward = forward


def widen_parallel(head: Any) -> None:
    """Do the same with megatron-core's ColumnParallelLinear, which is given the embedding's weight where it is tied."""
    plain = head.forward

    def forward(hidden: Any, weight: Any = None, **more: Any) -> Any:
        return plain(hidden.float(), weight=(head.weight if weight is None else weight).float(), **more)

    head.forward = forward
