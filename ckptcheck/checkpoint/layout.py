"""What the names of the tensors say about the model: stacks of layers, what each layer has, which experts.

Nothing here knows an architecture. A name such as ``model.layers.3.mlp.experts.17.up_proj.weight`` says that layer 3 of
the stack ``model.layers`` has a group ``mlp.experts`` whose member 17 has ``up_proj.weight``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

BOX = re.compile(r"\[[^\]]*\]")
"""Within the name of a chunk, which part of a weight it holds (`megatron.inspection.chunk_name`)."""
INDEX = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.)")
"""A number between dots, written as a program writes it (no leading zero, ASCII)."""
LAYER_NAMES = ("layers", "h", "blocks", "block", "layer", "layers_block")
ASIDE = re.compile(r"vision|visual|vit\b|audio|image|speech|mtp|nextn|draft|medusa|eagle|resampler|projector", re.I)
"""Stacks beside the language model's own: other modalities, and heads that only draft tokens."""


@dataclass
class Stack:
    """Numbered layers under one prefix.

    layers: number → what the layer has, names relative to it, further numbers written {}.
    groups: number → group within the layer (``mlp.experts``) → name within a member → the members that have it.
    """

    prefix: str
    layers: dict[int, set[str]] = field(default_factory=dict)
    groups: dict[int, dict[str, dict[str, set[int]]]] = field(default_factory=dict)

    def name(self, layer: int, rest: str = "") -> str:
        """Write the full name of something in a layer."""
        return ".".join(part for part in (self.prefix, str(layer), rest) if part)


@dataclass(frozen=True)
class Layout:
    """stacks: prefix → stack. outside: the tensors that belong to none."""

    stacks: dict[str, Stack]
    outside: tuple[str, ...]

    @property
    def main(self) -> Stack | None:
        """The language model's own stack: of those that look like layers, the one with the most tensors."""
        candidates = [
            stack
            for stack in self.stacks.values()
            if stack.prefix.rpartition(".")[2] in LAYER_NAMES and not ASIDE.search(stack.prefix)
        ]
        if any("decoder" in stack.prefix for stack in candidates):
            candidates = [stack for stack in candidates if "encoder" not in stack.prefix]
        return max(candidates, key=lambda stack: sum(map(len, stack.layers.values())), default=None)


def layout_of(names: Iterable[str]) -> Layout:
    """Read the structure off tensor names, in one pass."""
    stacks: dict[str, Stack] = {}
    outside: list[str] = []
    templates: dict[str, str] = {}  # the rest of a name after its first two numbers → the same with {} for numbers
    split = INDEX.split
    # Tensors of one expert follow each other and share all of their name but the end: that part is taken apart once.
    shared, width, number, member = "\0", 1, 0, 0
    layer: set[str] = set()
    parts_of_group: dict[str, set[int]] = {}
    for name in names:
        if name.startswith(shared) and (members := parts_of_group.get(name[width:])) is not None:
            members.add(member)
            continue
        parts = split(name, 2)
        if len(parts) == 1:
            outside.append(name)
            continue
        prefix = parts[0][:-1]
        stack = stacks.get(prefix)
        if stack is None:
            stack = stacks[prefix] = Stack(prefix)
        number = int(parts[1])
        layer = stack.layers.setdefault(number, set())
        if len(parts) == 3:
            layer.add(parts[2][1:])
            continue
        rest = templates.get(parts[4])
        if rest is None:
            rest = templates[parts[4]] = INDEX.sub("{}", parts[4][1:])
        group, member = parts[2][1:-1], int(parts[3])
        parts_of_group = stack.groups.setdefault(number, {}).setdefault(group, {})
        if rest not in parts_of_group:
            parts_of_group[rest] = set()
            layer.add(f"{group}.{{}}.{rest}")
        parts_of_group[rest].add(member)
        width = len(name) - len(parts[4]) + 1
        shared = name[:width]
    return Layout(stacks, tuple(outside))
