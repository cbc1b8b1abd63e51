"""Which of the trainer's tensors an engine's tensor is made of, by name alone.

vLLM 0.32 and SGLang 0.5.23 fuse projections and experts under names of their own; whatever else they rename is not known
here, and then nothing is said about the tensor. A wrong answer would be a false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
EXPERTS = re.compile(r"(.*\.experts)\.(?:routed_experts\.)?(w13_weight|w2_weight)$")
OF_EXPERTS = {"w13_weight": r"(?:gate_proj|up_proj|w1|w3)", "w2_weight": r"(?:down_proj|w2)"}


def parts(name: str, sent: Collection[str]) -> tuple[str, ...]:
    """Return the sent tensors that an engine's tensor is made of; () where that is not known. name: without the rank.

    >>> parts("model.layers.0.self_attn.qkv_proj.weight", [f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkvo"])
    ('model.layers.0.self_attn.q_proj.weight', 'model.layers.0.self_attn.k_proj.weight', 'model.layers.0.self_attn.v_proj.weight')
    """
    if name in sent:
        return (name,)
    for fused, single in FUSED.items():
        if f".{fused}." in name:
            found = tuple(name.replace(f".{fused}.", f".{part}.") for part in single)
            return found if all(part in sent for part in found) else ()
    if match := EXPERTS.fullmatch(name):
        pattern = re.compile(rf"{re.escape(match[1])}\.\d+\.{OF_EXPERTS[match[2]]}\.weight")
        return tuple(part for part in sent if pattern.fullmatch(part))
    return ()
