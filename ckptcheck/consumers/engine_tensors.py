"""Maps each engine tensor to the checkpoint tensors it is built from, by name alone.

vLLM 0.32 and SGLang 0.5.23 fuse projections and experts under names of their own. For a renaming that this module does not know,
the answer is empty, because a wrong answer would be a false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ckptcheck.consumers.structures import FUSED_MODULES

EXPERTS_TENSOR = re.compile(r"(.*\.experts)\.(?:\w+\.)?w(13|2)_(\w+)")
"""All experts of a layer: [experts, gate above up] and [experts, down] (their fused_moe layers)."""
EXPERT_PROJECTIONS = {"13": (("gate_proj", "up_proj"), ("w1", "w3")), "2": (("down_proj",), ("w2",))}
"""Suffix of a fused experts' tensor → names of the expert's projections in checkpoints, Mixtral's second."""
EXPERTS_WHOLE = {"13": "gate_up_proj", "2": "down_proj"}
"""The same suffix → the parameter that has a projection of all experts in models of transformers 5 (``experts.gate_up_proj``, and
``experts.gate_up_proj_bias`` of GPT-OSS)."""
EXPERT_MODULE = re.compile(r"(.*\.experts)\.\d+\.(gate_proj|up_proj|down_proj|w1|w2|w3)")
ROOTS = (
    ("language_model.model.", "model.language_model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("visual.", "model.visual."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
    ("model.", "backbone."),
)
"""Prefixes of names in an engine and in a checkpoint: vision-language models of transformers 5, models whose text model has no
prefix of its own in the checkpoint (Qwen2-VL), and Nemotron-H."""
FUSED_SUFFIX = {part: whole for whole, spellings in EXPERT_PROJECTIONS.items() for parts in spellings for part in parts}


def find_source_tensors(name: str, sent: Collection[str]) -> tuple[str, ...]:
    """Return the sent tensors that an engine's tensor is built from, in its order of elements; () if unknown.

    Args:
        name: the engine's tensor, without the rank.
        sent: the names of all tensors that the trainer sends.

    >>> projections = [f"model.layers.0.self_attn.{x}_proj.weight" for x in "oqkv"]
    >>> find_source_tensors("model.layers.0.self_attn.qkv_proj.weight", projections)
    ('model.layers.0.self_attn.q_proj.weight', 'model.layers.0.self_attn.k_proj.weight', 'model.layers.0.self_attn.v_proj.weight')
    """
    sources = _find_sources(name, sent)
    for engine_root, root in () if sources else ROOTS:
        if name.startswith(engine_root) and (sources := _find_sources(root + name.removeprefix(engine_root), sent)):
            break
    return sources


def _find_sources(name: str, sent: Collection[str]) -> tuple[str, ...]:
    if name in sent:
        return (name,)
    module, _, last = name.rpartition(".")
    parent, _, own = module.rpartition(".")
    sources: list[str] = []
    if own in FUSED_MODULES:
        sources = [f"{parent}.{part}.{last}" if parent else f"{part}.{last}" for part in FUSED_MODULES[own]]
    elif (match := EXPERTS_TENSOR.fullmatch(name)) is not None:
        prefix, last = match[1], match[3]
        numbers = {int(number) for each in sent if each.startswith(f"{prefix}.") and (number := _number(each, prefix))}
        sources = [
            f"{prefix}.{number}.{part}.{last}"
            for number in sorted(numbers)
            for spelling in EXPERT_PROJECTIONS[match[2]]
            for part in spelling
        ] or [f"{prefix}.{EXPERTS_WHOLE[match[2]]}{'' if last == 'weight' else f'_{last}'}"]
    return tuple(each for each in sources if each in sent)


def list_engine_modules(module: str) -> set[str]:
    """Return the names that an engine may give a checkpoint's module: its own, and the modules it may be fused into.

    >>> sorted(list_engine_modules("a.mlp.experts.3.up_proj"))
    ['a.mlp.experts.3.gate_up_proj', 'a.mlp.experts.3.up_proj', 'a.mlp.experts.w13']
    """
    parent, _, last = module.rpartition(".")
    names = {module} | {
        f"{parent}.{whole}" if parent else whole for whole, shards in FUSED_MODULES.items() if last in shards
    }
    if match := EXPERT_MODULE.fullmatch(module):
        names.add(f"{match[1]}.w{FUSED_SUFFIX[match[2]]}")
    return names


def _number(name: str, prefix: str) -> str:
    number = name.removeprefix(f"{prefix}.").partition(".")[0]
    return number if number.isdecimal() else ""
