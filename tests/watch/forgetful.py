"""Trains a toy whose engine forgets a layer from step 3 on, under watch: the example of docs/watch.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ckptcheck.watch import Watch, module


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))


def main(record: str) -> None:
    trainer, engine = model(), model()
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    watch = Watch(module(engine), record=record, trainer="toy")
    loss = None
    for step in range(5):
        with watch(step=step, loss=loss) as sync:
            push(engine, sync.sent(trainer.state_dict().items()), forget="2." if step >= 3 else None)
        inputs = torch.randn(32, 64)
        error = (trainer(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        loss = error.item()


def push(engine: Any, weights: Iterable[tuple[str, Any]], forget: str | None) -> None:
    held = dict(engine.named_parameters())
    with torch.no_grad():
        for name, tensor in weights:
            if forget is None or not name.startswith(forget):
                held[name].copy_(tensor)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "syncs.jsonl")
