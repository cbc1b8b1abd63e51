"""The trainer of transformers, but it sends half of the last norm: a tensor that does not fit the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptcheck_worker import transformers_trainer

whole = transformers_trainer._stream


def halved() -> Iterator[tuple[str, Any]]:
    """Yield the weights, the last norm cut."""
    for name, weight in whole():
        yield name, weight[: len(weight) // 2].clone() if name == "model.norm.weight" else weight


def export(buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Export them so, but the first time, which is the checkpoint of the cold load."""
    transformers_trainer._stream = halved if exported else whole
    exported.append(True)
    return transformers_trainer.export(buckets, addresses)


exported: list[bool] = []
RPC_METHODS = {**transformers_trainer.RPC_METHODS, "export": export}
