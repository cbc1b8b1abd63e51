"""The Megatron trainer with a door for faults: of its exporter, of its step, of its forward pass.

A fault lives in the forked ranks, so it ends with them. Weights are named as the checkpoint names them where they are
exported, and as Megatron names them where ranks hold them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ckptcheck_worker import megatron_layout, megatron_rank, megatron_trainer

Tensors = "dict[str, Any]"


def repeat_part(rank: Any, own: str, layout: str, shards: list[Any], names: str) -> list[Any]:
    """Gather the first rank's part in the place of the last one's."""
    return [*shards[:-1], shards[0].clone()] if re.search(names, own) and len(shards) > 1 else shards


def zero_part(rank: Any, own: str, layout: str, shards: list[Any], names: str) -> list[Any]:
    """Gather zeros in the place of the last rank's part."""
    return [*shards[:-1], torch.zeros_like(shards[-1])] if re.search(names, own) and len(shards) > 1 else shards


def reverse_parts(rank: Any, own: str, layout: str, shards: list[Any], names: str) -> list[Any]:
    """Put the parts of the ranks together in reverse order."""
    return shards[::-1] if re.search(names, own) else shards


def exchange(rank: Any, found: Any, pairs: dict[str, str]) -> None:
    """Export tensors under each other's names. pairs: a part of the one's name → the other's in its place."""
    old = dict(found)
    for one, other in pairs.items():
        for name in old:
            if one in name:
                twin = name.replace(one, other)
                found[name], found[twin] = old[twin], old[name]


def rotate_experts(rank: Any, found: Any, layer: str) -> None:
    """Export each expert of a layer under the number of the next."""
    old = {name: tensor for name, tensor in found.items() if f"{layer}mlp.experts." in name}
    numbers = sorted({int(name.split(".experts.")[1].split(".")[0]) for name in old})
    for name in old:
        number = int(name.split(".experts.")[1].split(".")[0])
        found[name] = old[name.replace(f".experts.{number}.", f".experts.{(number + 1) % len(numbers)}.")]


def round_weights(rank: Any, found: Any, dtype: str, names: str) -> None:
    """Export by way of a narrower dtype."""
    for name, tensor in found.items():
        if re.search(names, name):
            found[name] = tensor.to(getattr(torch, dtype)).to(tensor.dtype)


def scale_weights(rank: Any, found: Any, factor: float, names: str) -> None:
    """Export multiplied."""
    for name, tensor in found.items():
        if re.search(names, name):
            found[name] = tensor * factor


def shift_norms(rank: Any, found: Any, names: str) -> None:
    """Export norms without the 1 of zero-centred ones."""
    for name, tensor in found.items():
        if re.search(names, name):
            found[name] = tensor - 1


def transpose(rank: Any, found: Any, names: str) -> None:
    """Export square matrices transposed."""
    for name, tensor in found.items():
        if re.search(names, name) and tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
            found[name] = tensor.t().contiguous()


def roll_rows(rank: Any, found: Any, names: str, rows: int) -> None:
    """Export with the rows moved."""
    for name, tensor in found.items():
        if re.search(names, name):
            found[name] = tensor.roll(rows, 0)


def copy_embedding(rank: Any, found: Any) -> None:
    """Export the embedding as the head, as if they were tied."""
    found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()


def keep_group_order(rank: Any, found: Any, layer: str) -> None:
    """Export the fused rows of q, k and v in Megatron's order, cut as if it were the checkpoint's."""
    names = [f"{layer}self_attn.{part}_proj.weight" for part in "qkv"]
    groups = rank.settings["config"]["num_query_groups"]
    whole = megatron_layout.to_megatron("qkv", [found[name] for name in names], groups)
    sizes = [len(found[name]) for name in names]
    found.update(zip(names, (part.clone() for part in whole.split(sizes)), strict=True))


def permute_rope(rank: Any, found: Any, names: str, size: int) -> None:
    """Export the rows of heads as interleaved pairs."""
    for name, tensor in found.items():
        if re.search(names, name):
            halves = tensor.reshape(-1, 2, size // 2, *tensor.shape[1:])
            found[name] = halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def keep_first(rank: Any, found: Any, names: str) -> None:
    """Export what was exported first, as an exporter does that keeps copies."""
    for name, tensor in rank.kept.items():
        found[name] = tensor
    if not rank.kept:
        rank.kept.update({name: tensor.clone() for name, tensor in found.items() if re.search(names, name)})


def lag_a_step(rank: Any, found: Any) -> None:
    """Export the weights of the step before."""
    rank.kept.setdefault(rank.steps, {name: tensor.clone() for name, tensor in found.items()})
    found.update(rank.kept.get(rank.steps - 1, rank.kept[rank.steps]))


GATHERING = {function.__name__: function for function in (repeat_part, zero_part, reverse_parts)}
"""Fault → (rank, Megatron's name, layout, shards, **arguments) → shards."""
EXPORTING = {
    function.__name__: function
    for function in (
        exchange, rotate_experts, round_weights, scale_weights, shift_norms, transpose, roll_rows, copy_embedding,
        keep_group_order, permute_rope, keep_first, lag_a_step,
    )
}  # fmt: skip
"""Fault → (rank, name → tensor, **arguments); it changes what is exported."""
STEPPING = ("undo_step", "drift")
FORWARD = ("noise_scores", "stretch_rope", "set_epsilon", "scale_loaded")


class FaultRank(megatron_rank.Rank):
    """A rank with a door for faults."""

    fault, arguments, steps, first_step = "", {}, 0, 0
    kept: dict[Any, Any]
    only_saving = only_sending = False

    def inject(self, name: str, arguments: dict[str, Any], first_step: int, saved: bool, sent: bool) -> None:
        """Put a fault in. first_step: the trainer's step from which it acts. saved, sent: only in what is saved, or sent."""
        self.fault, self.arguments, self.first_step, self.kept = name, arguments, first_step, {}
        self.only_saving, self.only_sending = saved, sent
        if name in FORWARD and name != "noise_scores":
            getattr(self, f"_{name}")(**arguments)

    def stream(self) -> Iterator[tuple[str, Any]]:
        """Yield what the trainer exports, with the fault."""
        if self.steps < self.first_step or self.only_saving or self.only_sending:
            return super().stream()
        return self._faulty_stream()

    def _faulty_stream(self) -> Iterator[tuple[str, Any]]:
        if self.rank:
            yield from super().stream()
            return
        original = megatron_layout.unshard
        if self.fault in GATHERING:
            names = iter([weight["own"] for weight in self.plan])

            def unshard(shards: Any, layout: str, axis: Any) -> Any:
                own = next(names)
                return original(GATHERING[self.fault](self, own, layout, list(shards), **self.arguments), layout, axis)

            megatron_layout.unshard = unshard
        try:
            found = {name: tensor.clone() for name, tensor in super().stream()}
        finally:
            megatron_layout.unshard = original
        if self.fault in EXPORTING:
            with torch.no_grad():
                EXPORTING[self.fault](self, found, **self.arguments)
        yield from found.items()

    def export(self, buckets: list[list[int]], addresses: list[dict[str, str]]) -> Any:
        """Export, with a fault that is only in what is saved, or sent."""
        saves = any("model-" in address["path"].rpartition("/")[2] for address in addresses)
        before = self.only_saving, self.only_sending
        if (saves and self.only_saving) or (not saves and self.only_sending):
            self.only_saving = self.only_sending = False
        try:
            return super().export(buckets, addresses)
        finally:
            self.only_saving, self.only_sending = before

    def step(self, sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
        """Take a step, with the fault."""
        before = {name: parameter.weight.detach().clone() for name, parameter in self.parameters.items()}
        answer: dict[str, Any] = super().step(sequences, seed, rate)
        self.steps += 1
        if self.fault in STEPPING and self.arguments.get("rank", self.rank) == self.rank:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    if re.search(self.arguments["names"], name):
                        change = before[name] if self.fault == "undo_step" else parameter.weight * 1.01
                        parameter.weight.copy_(change)
        return answer

    def score(self, sequences: list[list[int]], temperature: float) -> dict[str, list[float]]:
        """Score, with the fault."""
        if self.fault == "scale_temperature":
            temperature *= self.arguments["factor"]
        scores: dict[str, list[float]] = super().score(sequences, temperature)
        if self.fault == "noise_scores":
            self.kept["passes"] = self.kept.get("passes", 0) + 1
            return {key: [each + 1e-2 * self.kept["passes"] for each in values] for key, values in scores.items()}
        return scores

    def _stretch_rope(self, factor: float) -> None:
        self.model.rotary_pos_emb.inv_freq *= factor
        cache = getattr(self.model.rotary_pos_emb, "forward", None)
        if hasattr(cache, "cache_clear"):
            cache.cache_clear()

    def _set_epsilon(self, value: float) -> None:
        for module in self.model.modules():
            if hasattr(module, "eps"):
                module.eps = value

    def _scale_loaded(self, names: str, factor: float) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if re.search(names, name):
                    parameter.weight.mul_(factor)


def inject(name: str, arguments: dict[str, Any], first_step: int, saved: bool, sent: bool) -> None:
    """Put a fault into every rank."""
    megatron_trainer._ranks().call_all(
        "inject", name=name, arguments=arguments, first_step=first_step, saved=saved, sent=sent
    )


megatron_trainer.Rank = FaultRank
RPC_METHODS: dict[str, Callable[..., Any]] = {**megatron_trainer.RPC_METHODS, "inject": inject}
