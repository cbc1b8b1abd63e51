"""Derives the structure of a model from its tensor names: stacks of layers, the tensors of each layer, experts.

This module knows no architecture. The name ``model.layers.3.mlp.experts.17.up_proj.weight`` means that layer 3 of the
stack ``model.layers`` has a group ``mlp.experts`` whose member 17 has ``up_proj.weight``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

S = TypeVar("S")
T = TypeVar("T")

BOX = re.compile(r"\[[^\[\]]*\]")
"""The slice in a chunk's name (`megatron.inspection.chunk_name`)."""
WRAPPER = re.compile(
    r"^module(?=\.)|(?:^|(?<=\.))_(?:orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module|forward_module)(?=\.)"
)
"""Modules that wrap another while it trains: torch.compile, FSDP, activation checkpointing, Lightning and DDP."""
INDEX = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.)")
"""A number between dots in canonical form (ASCII, no leading zero)."""
LAYER_NAMES = ("layers", "h", "blocks", "block", "layer", "layers_block", "resblocks")
ASIDE = re.compile(
    r"vision|visual|vit\b|audio|image|speech|mtp|nextn|draft|medusa|eagle|resampler|projector|detr|depth_decoder", re.I
)
"""Names of stacks outside the language model: other modalities, and heads that only draft tokens."""


TEXT_TOWER = re.compile(r"(^|\.)(text_(backbone|model)|language_backbone)\.")
"""Names under which models of images keep the layers that read text."""
KEPT_BLOCKS = 4
"""How many blocks that begin alike are compared with the next layer; models of several kinds of layers have two or three."""
VOCODER = re.compile(r"(^|\.)(decoder|vocoder|generator)\.resblocks$")
"""Stacks of convolutions that turn a spectrum into sound."""


class Stack(msgspec.Struct):
    """Numbered layers under one prefix."""

    prefix: str
    """The name in front of the layer number: ``model.layers``."""
    layers: dict[int, set[str]] = msgspec.field(default_factory=dict)
    """Layer number → tensor names relative to the layer, with {} for further numbers."""
    groups: dict[int, dict[str, dict[str, dict[int, str]]]] = msgspec.field(default_factory=dict)
    """Layer number → group within the layer (``mlp.experts``) → name within a member → the members that have it, each with the
    full name of its tensor (of one such tensor, if the name within the member has {} for further numbers)."""

    def full_name(self, layer: int, rest: str = "") -> str:
        """Return the full name of a tensor or module in a layer."""
        return ".".join(part for part in (self.prefix, str(layer), rest) if part)


Pick = Callable[[Sequence[T]], Sequence[T]]
"""Takes what lies at some places of a sequence."""


class Block(msgspec.Struct, frozen=True):
    """Names of one layer that follow each other. Nearly always other layers repeat them, and are parsed at once."""

    endings: tuple[str, ...]
    """The names relative to the layer."""
    layer: frozenset[str]
    """The same, with {} for numbers."""
    alone: tuple[tuple[str, Pick[Any]], ...]
    """Name with {} for numbers, and the names that it stands for; of numbered members only those with further numbers."""
    members: tuple[tuple[str, str, str | None, tuple[int, ...], Pick[Any]], ...]
    """Group, name within a member, the two as a template (None if it is in `alone`), the members' numbers, and their names."""

    def matches(self, names: tuple[str, ...], at: int, start: str) -> bool:
        """Whether the names from a place on are those of this block behind `start`."""
        run = names[at : at + len(self.endings)]
        return run[-1] == start + self.endings[-1] and "\0".join(run) == start + f"\0{start}".join(self.endings)


class Layout(msgspec.Struct, frozen=True):
    """The stacks of layers of a model, and the tensors outside them."""

    stacks: dict[str, Stack]
    """Prefix → stack."""
    outside: tuple[str, ...]
    """Names of the tensors that belong to no stack."""
    names_by_template: dict[str, list[str]]
    """Name with {} for each number → the names that it stands for, so that a rule can check each kind of tensor once."""
    runs: tuple[tuple[int, str, Block], ...]
    """The place of a run's first name, what its templates begin with, and its block; in order."""

    def group_by_template(self, tensors: Iterable[S], describe: Callable[[S], T]) -> dict[str, set[T]]:
        """Return template → the distinct properties of its tensors.

        Args:
            tensors: in the order of the names that the layout was derived from.
            describe: returns the property of a tensor.

        """
        grouped: dict[str, set[T]] = {template: set() for template in self.names_by_template}
        # Most runs repeat not only the names, but also the properties of the run before.
        last: dict[tuple[str, int], Sequence[T]] = {}
        end = 0
        outside = iter(self.outside)
        following = iter(tensors)
        for at, prefix, block in self.runs:
            for tensor in islice(following, at - end):
                grouped[next(outside)].add(describe(tensor))
            end = at + len(block.endings)
            run = list(map(describe, islice(following, len(block.endings))))
            if last.get((prefix, id(block))) == run:
                continue
            last[prefix, id(block)] = run
            for rest, pick in block.alone:
                grouped[prefix + rest].update(pick(run))
            for *_, template, _, pick in block.members:
                if template is not None:
                    grouped[prefix + template].update(pick(run))
        for name, tensor in zip(outside, following, strict=True):
            grouped[name].add(describe(tensor))
        return grouped

    @property
    def gaps(self) -> dict[str, set[int]]:
        """Stack → the numbers missing between its first and its last layer, if its layers are alike.

        Modules without parameters are numbered too (an activation between two linear layers), so a stack counts only if at least
        four layers, and three in four of them, have the same four tensors or more.
        """
        gaps = {}
        for prefix, stack in self.stacks.items():
            lacking = max(stack.layers) - min(stack.layers) + 1 - len(stack.layers)
            if not lacking or len(stack.layers) < 4 or 4 * lacking > len(stack.layers):
                continue
            names, number = Counter(map(frozenset, stack.layers.values())).most_common(1)[0]
            if len(names) >= 4 and 4 * number >= 3 * len(stack.layers):
                gaps[prefix] = set(range(min(stack.layers), max(stack.layers))) - stack.layers.keys()
        return gaps

    @property
    def candidates(self) -> list[Stack]:
        """The stacks that look like a language model's layers, largest first, without other modalities and encoders."""
        candidates = [
            stack
            for stack in self.stacks.values()
            if stack.prefix.rpartition(".")[2] in LAYER_NAMES and not ASIDE.search(stack.prefix)
        ]
        # Leave out a few linear layers in a row (SAM 3's mask embedder) and the vocoder of a speech model (VITS).
        blocks = [stack for stack in candidates if max(map(len, stack.layers.values())) > 2]
        candidates = [stack for stack in blocks if not VOCODER.search(stack.prefix)] or blocks or candidates
        if any("decoder" in stack.prefix for stack in candidates):
            # Grounding DINO, OmDet and CLIPSeg read text in a tower of its own; their decoders produce boxes and masks.
            towers = [stack for stack in candidates if TEXT_TOWER.search(stack.prefix)]
            candidates = towers or [stack for stack in candidates if "encoder" not in stack.prefix]
        return sorted(candidates, key=lambda stack: -sum(map(len, stack.layers.values())))


def parse_layout(names: Iterable[str]) -> Layout:
    """Derive the structure from tensor names, in one pass."""
    names = tuple(names)
    stacks: dict[str, Stack] = {}
    outside: list[str] = []
    runs: list[tuple[int, str, Block]] = []
    names_by_template: dict[str, list[str]] = {}
    # Template → the members of one group that it stands for; their names join the template's at the end.
    members_by_template: dict[str, list[dict[int, str]]] = {}
    # The first name of a run, relative to its layer → the blocks that began with it, the latest first.
    known: dict[str, list[Block]] = {}
    # `Block.matches` puts this sign between names
    can_compare = "\0".join(names).count("\0") < len(names)
    at = 0
    while at < len(names):
        name = names[at]
        parts = INDEX.split(name, 1)
        if len(parts) == 1:
            outside.append(name)
            names_by_template.setdefault(name, []).append(name)
            at += 1
            continue
        ending = parts[2][1:]
        start = name[: len(name) - len(ending)]
        blocks = known.setdefault(ending, [])
        block = next((block for block in blocks if can_compare and block.matches(names, at, start)), None)
        if block is None:
            end = next((i for i in range(at + 1, len(names)) if not names[i].startswith(start)), len(names))
            block = _parse_block([name[len(start) :] for name in names[at:end]])
            blocks.insert(0, block)
            del blocks[KEPT_BLOCKS:]
        prefix, number = parts[0][:-1], int(parts[1])
        stack = stacks.get(prefix)
        if stack is None:
            stack = stacks[prefix] = Stack(prefix)
        stack.layers.setdefault(number, set()).update(block.layer)
        run = names[at : at + len(block.endings)]
        runs.append((at, f"{parts[0]}{{}}.", block))
        at += len(run)
        for rest, pick in block.alone:
            names_by_template.setdefault(f"{parts[0]}{{}}.{rest}", []).extend(pick(run))
        groups = stack.groups.setdefault(number, {}) if block.members else {}
        for group, rest, template, members, pick in block.members:
            of_group = groups.setdefault(group, {})
            if rest not in of_group:
                of_group[rest] = {}
                if template is not None:
                    members_by_template.setdefault(f"{parts[0]}{{}}.{template}", []).append(of_group[rest])
            of_group[rest].update(zip(members, pick(run), strict=True))
    for template, of_template in members_by_template.items():
        alike = names_by_template.setdefault(template, [])
        for numbered in of_template:
            alike.extend(numbered.values())
    return Layout(stacks, tuple(outside), names_by_template, tuple(runs))


def _parse_block(endings: list[str]) -> Block:
    """Derive the structure of names that begin with the same layer, relative to that layer."""
    layer: set[str] = set()
    alone: dict[str, list[int]] = {}
    members: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for place, ending in enumerate(endings):
        parts = INDEX.split(ending, 1)
        if len(parts) == 1:
            layer.add(ending)
            alone.setdefault(ending, []).append(place)
            continue
        rest = INDEX.sub("{}", parts[2][1:])
        layer.add(f"{parts[0]}{{}}.{rest}")
        numbers, places = members.setdefault((parts[0], rest), ([], []))
        numbers.append(int(parts[1]))
        places.append(place)
        if "{}" in rest:
            alone.setdefault(f"{parts[0]}{{}}.{rest}", []).append(place)
    return Block(
        tuple(endings),
        frozenset(layer),
        tuple((rest, pick_places(places)) for rest, places in alone.items()),
        tuple(
            (start[:-1], rest, None if "{}" in rest else f"{start}{{}}.{rest}", tuple(numbers), pick_places(places))
            for (start, rest), (numbers, places) in members.items()
        ),
    )


def pick_places(places: list[int]) -> Pick[Any]:
    """Return a function that takes what lies at some places of a sequence."""
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
