"""Of which tensors of a checkpoint an engine's tensor is made, by name alone.

vLLM 0.32 and SGLang 0.5.23 fuse projections and experts under names of their own; whatever else they rename is not known
here, and then nothing is said about the tensor. A wrong answer would be a false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ckptcheck.dialects.structures import FUSED

HELD = re.compile(r"(.*\.experts)\.(?:\w+\.)?w(13|2)_(\w+)")
"""All experts of a layer: [experts, gate above up] and [experts, down] (their fused_moe layers)."""
MEMBERS = {"13": (("gate_proj", "up_proj"), ("w1", "w3")), "2": (("down_proj",), ("w2",))}
"""What an expert's parts are called in checkpoints, the second time in Mixtral's."""
EXPERT = re.compile(r"(.*\.experts)\.\d+\.(gate_proj|up_proj|down_proj|w1|w2|w3)")
WHOLE = {part: whole for whole, spellings in MEMBERS.items() for parts in spellings for part in parts}


def parts(name: str, sent: Collection[str]) -> tuple[str, ...]:
    """Return those of the sent tensors that an engine's tensor is made of, in its order of elements; () where that is not known.

    name: without the rank.

    >>> parts("model.layers.0.self_attn.qkv_proj.weight", [f"model.layers.0.self_attn.{x}_proj.weight" for x in "oqkv"])
    ('model.layers.0.self_attn.q_proj.weight', 'model.layers.0.self_attn.k_proj.weight', 'model.layers.0.self_attn.v_proj.weight')
    """
    if name in sent:
        return (name,)
    module, _, last = name.rpartition(".")
    parent, _, own = module.rpartition(".")
    found: list[str] = []
    if own in FUSED:
        found = [f"{parent}.{part}.{last}" if parent else f"{part}.{last}" for part in FUSED[own]]
    elif (match := HELD.fullmatch(name)) is not None:
        prefix, last = match[1], match[3]
        numbers = {int(number) for each in sent if each.startswith(f"{prefix}.") and (number := _number(each, prefix))}
        found = [
            f"{prefix}.{number}.{part}.{last}"
            for number in sorted(numbers)
            for spelling in MEMBERS[match[2]]
            for part in spelling
        ]
    return tuple(each for each in found if each in sent)


def places(module: str) -> set[str]:
    """Return the names under which an engine may hold a module of a checkpoint: its own, and what it may be fused into.

    >>> sorted(places("a.mlp.experts.3.up_proj"))
    ['a.mlp.experts.3.gate_up_proj', 'a.mlp.experts.3.up_proj', 'a.mlp.experts.w13']
    """
    parent, _, last = module.rpartition(".")
    found = {module} | {f"{parent}.{whole}" if parent else whole for whole, shards in FUSED.items() if last in shards}
    if match := EXPERT.fullmatch(module):
        found.add(f"{match[1]}.w{WHOLE[match[2]]}")
    return found


def _number(name: str, prefix: str) -> str:
    number = name.removeprefix(f"{prefix}.").partition(".")[0]
    return number if number.isdecimal() else ""
