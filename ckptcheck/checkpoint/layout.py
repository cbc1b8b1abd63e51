"""Derives the structure of a model from its tensor names: stacks of layers, the tensors of each layer, experts.

This module knows no architecture. The name ``model.layers.3.mlp.experts.17.up_proj.weight`` means that layer 3 of the
stack ``model.layers`` has a group ``mlp.experts`` whose member 17 has ``up_proj.weight``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

BOX = re.compile(r"\[[^\[\]]*\]")
"""The slice in a chunk's name (`megatron.inspection.chunk_name`)."""
INDEX = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.)")
"""A number between dots in canonical form (ASCII, no leading zero)."""
LAYER_NAMES = ("layers", "h", "blocks", "block", "layer", "layers_block", "resblocks")
ASIDE = re.compile(
    r"vision|visual|vit\b|audio|image|speech|mtp|nextn|draft|medusa|eagle|resampler|projector|detr|depth_decoder", re.I
)
"""Names of stacks outside the language model: other modalities, and heads that only draft tokens."""


TEXT_TOWER = re.compile(r"(^|\.)(text_(backbone|model)|language_backbone)\.")
"""Names under which models of images keep the layers that read text."""
VOCODER = re.compile(r"(^|\.)(decoder|vocoder|generator)\.resblocks$")
"""Stacks of convolutions that turn a spectrum into sound."""


@dataclass
class Stack:
    """Numbered layers under one prefix."""

    prefix: str
    """The name in front of the layer number: ``model.layers``."""
    layers: dict[int, set[str]] = field(default_factory=dict)
    """Layer number → tensor names relative to the layer, with {} for further numbers."""
    groups: dict[int, dict[str, dict[str, dict[int, str]]]] = field(default_factory=dict)
    """Layer number → group within the layer (``mlp.experts``) → name within a member → the members that have it, each with the
    full name of its tensor (of one such tensor, if the name within the member has {} for further numbers)."""

    def full_name(self, layer: int, rest: str = "") -> str:
        """Return the full name of a tensor or module in a layer."""
        return ".".join(part for part in (self.prefix, str(layer), rest) if part)


class Layout(msgspec.Struct, frozen=True):
    """The stacks of layers of a model, and the tensors outside them."""

    stacks: dict[str, Stack]
    """Prefix → stack."""
    outside: tuple[str, ...]
    """Names of the tensors that belong to no stack."""
    names_by_template: dict[str, list[str]]
    """Name with {} for each number → the names that it stands for, so that a rule can check each kind of tensor once."""

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
    stacks: dict[str, Stack] = {}
    outside: list[str] = []
    names_by_template: dict[str, list[str]] = {}
    # Template → the members of one group that it stands for; their names join the template's at the end.
    members_by_template: dict[str, list[dict[int, str]]] = {}
    # The rest of a name after its first two numbers → the same with {} for numbers.
    templates: dict[str, str] = {}
    split = INDEX.split
    # Tensors of one expert are adjacent, and their names differ only at the end: parse the shared part once.
    shared, width, number, member = "\0", 1, 0, 0
    layer: set[str] = set()
    parts_of_group: dict[str, dict[int, str]] = {}
    for name in names:
        tail = name[width:] if name.startswith(shared) else "{}"
        if "{}" not in tail and (members := parts_of_group.get(tail)) is not None:
            members[member] = name
            continue
        parts = split(name, 2)
        if len(parts) == 1:
            outside.append(name)
            names_by_template.setdefault(name, []).append(name)
            continue
        prefix = parts[0][:-1]
        stack = stacks.get(prefix)
        if stack is None:
            stack = stacks[prefix] = Stack(prefix)
        number = int(parts[1])
        layer = stack.layers.setdefault(number, set())
        if len(parts) == 3:
            layer.add(parts[2][1:])
            names_by_template.setdefault(f"{parts[0]}{{}}{parts[2]}", []).append(name)
            continue
        rest = templates.get(parts[4])
        if rest is None:
            rest = templates[parts[4]] = INDEX.sub("{}", parts[4][1:])
        group, member = parts[2][1:-1], int(parts[3])
        parts_of_group = stack.groups.setdefault(number, {}).setdefault(group, {})
        template = f"{parts[0]}{{}}{parts[2]}{{}}.{rest}"
        if rest not in parts_of_group:
            parts_of_group[rest] = {}
            layer.add(f"{group}.{{}}.{rest}" if group else f"{{}}.{rest}")
            if "{}" not in rest:
                members_by_template.setdefault(template, []).append(parts_of_group[rest])
        if "{}" in rest:
            names_by_template.setdefault(template, []).append(name)
        parts_of_group[rest][member] = name
        width = len(name) - len(parts[4]) + 1
        shared = name[:width]
    for template, groups in members_by_template.items():
        names_by_template.setdefault(template, []).extend(name for members in groups for name in members.values())
    return Layout(stacks, tuple(outside), names_by_template)
