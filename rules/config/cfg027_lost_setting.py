"""The config lacks a setting that transformers always writes, and the default may be another number.

## What it checks
Where transformers itself wrote the config (`transformers_version`), and knows the `model_type`: the base of the rotary
embeddings is there (`rope_theta`, within `rope_parameters` since transformers 5; in `rope_scaling` or beside it where that is there
too, for it takes the place of `rope_parameters`), and so is the epsilon of the norms. transformers
writes both whenever it saves a model of these classes. Of 259 classes it was learned which other keys every version from 4.57.1 to
5.24 writes, with which the model computes although no tensor shows them: experts per token and how their weights are scaled,
windows, caps and scales of logits, activation functions.

## Why it matters
The tensors show none of these. transformers, vLLM and SGLang take the default of the class: a base of 10,000 for a
Llama 3 that was trained with 500,000. The model loads without a word and answers worse, the more so the longer the text.

## How to fix
Copy the setting from the config of the model this one was trained or converted from.

## When it can be wrong
The lost number may have been the default. A program that copied `transformers_version` into a config of its own may never have
written the setting. Nested configs are not checked, for transformers leaves defaults out of them.

## Seen in
paiml/aprender#324 (an exporter lost the base and filled in another family's), huggingface/transformers#41151 (`norm_topk_prob` lost
on the way through GGUF)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import list_written_keys
from ckptcheck.checkpoint.config import NORM_EPSILON
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.resolved_config import ResolvedPart, Setting
from ckptcheck.checkpoint.setting_text import write_value
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
BASE = re.compile(r"theta|(rotary|rope|freq)\w*_base")
"""Names of the base: GPT-NeoX calls it ``rotary_emb_base``."""
ALL_CLASSES, FAMILIES = (5, 0), (4, 34)
"""Since when transformers writes the base for every class that has one, and for the common decoder families."""


@rule(
    "CFG027",
    "lost-setting",
    severity="warning",
    on="config",
    when=lambda ckpt: (
        not ckpt.is_partial
        and ckpt.config.resolved is not None
        and ckpt.config.resolved.text is ckpt.config.resolved.top
        and "transformers_version" in ckpt.config.value
    ),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, resolved = ckpt.config, ckpt.config.resolved
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(config.value["transformers_version"]))
    if resolved is None or found is None:
        return
    part, version = resolved.text, tuple(int(number or 0) for number in found.groups())
    hint = "copy it from the config of the model this one was trained or converted from"
    since = FAMILIES if family_of(config) is not None else ALL_CLASSES
    if part.config_class.rope.get("saved") and version >= since and not _has_base(part):
        default = (part.config_class.rope.get("default") or {}).get("rope_theta", part.config_class.rope["theta"])
        place = next((key for key in ("rope_scaling", "rope_parameters") if part.settings.get(key)), "config.json")
        yield Problem(
            f"{place} has no rope_theta for the layers, which transformers always writes; every consumer takes "
            f"{part.config_class.name}'s default, a base of {write_value(default)}",
            file=config.file,
            key="rope_parameters",
            hint=hint,
        )
    lost = [*_list_lost_epsilons(part)] if version >= FAMILIES else []
    written = list_written_keys(str(part.settings.get("model_type")), version)
    lost += [setting for key in written if (setting := part.find(key)) is not None and setting.source == "default"]
    for setting in lost:
        yield Problem(
            f"config.json has no {setting.name}, which transformers always writes; every consumer takes "
            f"{part.config_class.name}'s default of {write_value(setting.value)}",
            file=config.file,
            key=setting.name,
            hint=hint,
        )


def _list_lost_epsilons(part: ResolvedPart) -> Iterator[Setting]:
    """Yield the epsilons of norms that a config lacks."""
    for field, default in part.config_class.defaults.items():
        if NORM_EPSILON.fullmatch(field) and (setting := part.find(field)) is not None:
            # MiMo-V2's own code has another name for it.
            others = [value for key, value in part.settings.items() if NORM_EPSILON.fullmatch(key)]
            if setting.source == "default" and others != [default]:
                yield setting


def _has_base(part: ResolvedPart) -> bool:
    """Whether a config gives a base, of all layers or of each kind of them, under any of its names."""
    settings, default = part.settings, part.config_class.rope.get("default") or {}
    if any(BASE.search(key) and value is not None for key, value in settings.items()):
        return True
    listed = settings.get("layer_types")
    labels = {*part.config_class.rope.get("labels", ()), *(map(str, listed) if isinstance(listed, list) else ())}
    has_kinds = bool(labels) or any(isinstance(kind, dict) for kind in default.values())
    found = [rope for key in ROPE[1::-1] if isinstance(rope := settings.get(key), dict) and rope]
    # transformers takes rope_scaling in place of rope_parameters; classes with kinds of layers may read both
    for rope in found if has_kinds else found[:1]:
        kinds = [kind for kind in rope.values() if isinstance(kind, dict)]
        if any(map(BASE.search, rope)) or (has_kinds and kinds and all(any(map(BASE.search, kind)) for kind in kinds)):
            return True
    return False
