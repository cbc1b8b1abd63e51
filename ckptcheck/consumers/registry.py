"""The table of all consumers. A new consumer gets a row here; docs/adding-a-consumer.md shows the rest."""

from __future__ import annotations

from ckptcheck.consumers.consumer import Consumer
from ckptcheck.consumers.sglang import SGLANG
from ckptcheck.consumers.slime import SLIME
from ckptcheck.consumers.transformers import COMPRESSED_TENSORS, TRANSFORMERS
from ckptcheck.consumers.vllm import VLLM

CONSUMERS: dict[str, Consumer] = {
    consumer.name: consumer for consumer in (VLLM, SGLANG, TRANSFORMERS, COMPRESSED_TENSORS, SLIME)
}
"""Every known consumer by the name that ``--consumers`` takes."""


def list_default_consumers() -> tuple[str, ...]:
    """Return the consumers that a scan evaluates if the user names none."""
    return tuple(name for name, consumer in CONSUMERS.items() if consumer.is_default)
