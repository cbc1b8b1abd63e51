"""Brings tensor names of older transformers releases and of value-head wrappers to the newest form.

Source: `_checkpoint_conversion_mapping` of the modeling files and conversion_mapping.py (transformers 4.52 to 5.23), trl
`AutoModelForCausalLMWithValueHead` (v_head.summary).
"""

from __future__ import annotations

import re

RENAMES = (
    (re.compile(r"^pretrained_model\."), ""),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^language_model\.model\."), "model.language_model."),
    (re.compile(r"^(vision_tower|multi_modal_projector|visual|vision_model)\."), r"model.\1."),
    (re.compile(r"^(layers|embed_tokens|norm)\."), r"model.\1."),
    (re.compile(r"^(?:v_head\.summary|value_head|v_head)\.(weight|bias)$"), r"score.\1"),
)


def normalize_hf_name(name: str) -> str:
    """Return the name that the newest transformers release gives to a tensor; a critic's value head becomes ``score``.

    >>> normalize_hf_name("language_model.model.layers.0.mlp.up_proj.weight"), normalize_hf_name("v_head.summary.weight")
    ('model.language_model.layers.0.mlp.up_proj.weight', 'score.weight')
    """
    for pattern, new in RENAMES:
        name = pattern.sub(new, name)
    return name
