"""The Megatron trainer with faults: one rank's copy of a parameter changes, or the export is not what the ranks hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ckptcheck_worker import megatron_layout, megatron_trainer

Stream = Iterator[tuple[str, Any]]
LAYER = re.compile(r"(?<=\.layers\.)\d+")
EXPERT = re.compile(r"(?<=\.experts\.)\d+")


class FaultyRank(megatron_trainer.Rank):
    """A rank that can be told what its export gets wrong, and after how many steps."""

    fault, since, steps = "", 0, 0
    is_saving = False

    def perturb_one_rank(self, rank: int, name: str) -> None:
        """Change one number of a parameter (Megatron's name) on one rank only."""
        import torch

        if self.rank == rank:
            with torch.no_grad():
                self.parameters[name].weight.view(-1)[0] += 1

    def plant(self, fault: str, since: int) -> None:
        """Export wrongly after that many steps: see `FAULTS`."""
        self.fault, self.since = fault, since
        self.first = dict(super().stream()) if fault.startswith("stale") else {}
        self.first = {name: tensor.clone() for name, tensor in self.first.items() if tensor is not None}

    def step(self, *arguments: Any, **named: Any) -> Any:
        self.steps += 1
        return super().step(*arguments, **named)

    def stream(self) -> Stream:
        is_wrong = self.fault and self.steps >= self.since
        unshard = megatron_layout.unshard
        if is_wrong and self.fault in UNSHARD:
            change = UNSHARD[self.fault]
            megatron_layout.unshard = lambda shards, layout, axis: unshard(
                change([*shards]) if axis is not None and len(shards) > 1 else shards, layout, axis
            )
        try:
            stream = super().stream()
            yield from FAULTS[self.fault](self, stream) if is_wrong and self.fault in FAULTS else stream
        finally:
            megatron_layout.unshard = unshard

    def export(self, buckets: list[list[int]], addresses: list[dict[str, str]]) -> Any:
        if self.fault == "saves" and self.steps >= self.since and addresses[0]["path"].endswith("-00001.safetensors"):
            plain, self.stream = self.stream, lambda: halve(self, super(FaultyRank, self).stream())
            try:
                return super().export(buckets, addresses)
            finally:
                self.stream = plain
        return super().export(buckets, addresses)


def renumber(pattern: re.Pattern[str], numbers: dict[str, str]) -> Callable[[FaultyRank, Stream], Stream]:
    """Export what has one number under another, in the order of the true names."""

    def change(rank: FaultyRank, stream: Stream) -> Stream:
        exported = dict(stream)
        for name in exported:
            yield name, exported[pattern.sub(lambda match: numbers.get(match[0], match[0]), name)]

    return change


def keep_first(*kinds: str) -> Callable[[FaultyRank, Stream], Stream]:
    """Export what these kinds of weights were when the fault was planted; all, where none is named."""

    def change(rank: FaultyRank, stream: Stream) -> Stream:
        for name, tensor in stream:
            is_kept = tensor is not None and (not kinds or any(kind in name for kind in kinds))
            yield name, rank.first[name] if is_kept else tensor

    return change


def exchange_key_and_value(rank: FaultyRank, stream: Stream) -> Stream:
    """Export keys as values in the last layer, and the other way round."""
    exported = dict(stream)
    names = {"k_proj": "v_proj", "v_proj": "k_proj"}
    last = max(int(match[0]) for name in exported if (match := LAYER.search(name)))
    for name in exported:
        is_last = f".layers.{last}." in name
        yield name, exported[re.sub("[kv]_proj", lambda match: names[match[0]], name)] if is_last else exported[name]


def halve(rank: FaultyRank, stream: Stream) -> Stream:
    """Export the last norm halved."""
    for name, tensor in stream:
        yield name, tensor / 2 if tensor is not None and name == "model.norm.weight" else tensor


FAULTS: dict[str, Callable[[FaultyRank, Stream], Stream]] = {
    "layers": renumber(LAYER, {"0": "1", "1": "0"}),
    "experts": renumber(EXPERT, {"0": "2", "1": "3", "2": "0", "3": "1"}),
    "stale": keep_first(),
    "stale-norms": keep_first("norm"),
    "keys": exchange_key_and_value,
    "halved": halve,
}
UNSHARD: dict[str, Callable[[list[Any]], list[Any]]] = {
    "zero-last": lambda shards: [*shards[:-1], shards[-1].new_zeros(shards[-1].shape)],
    "repeat-first": lambda shards: [*shards[:-1], shards[0]],
    "reverse": lambda shards: shards[::-1],
}


def perturb_one_rank(rank: int, name: str) -> None:
    """Change one number of a parameter on one rank only."""
    megatron_trainer._ranks().call_all("perturb_one_rank", rank=rank, name=name)


def plant(fault: str, since: int) -> None:
    """Let the export be wrong after that many steps."""
    megatron_trainer._ranks().call_all("plant", fault=fault, since=since)


megatron_trainer.Rank = FaultyRank
RPC_METHODS = {**megatron_trainer.RPC_METHODS, "perturb_one_rank": perturb_one_rank, "plant": plant}
