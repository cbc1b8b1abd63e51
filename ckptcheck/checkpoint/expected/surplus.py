"""Finds stored tensors that the architecture has no place for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import MTP, SCORE
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.heads import find_likely_heads, is_language_model, is_scorer, score_head_modules
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_shape, join_truncated

LEGAL = re.compile(
    r"rotary_emb|rotary_pos_emb|position_ids|scale|quant|zero_point|centroids|g_idx|observer|kv_cache|(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$"
)
"""Buffers that the model computes itself, and tensors that quantization adds."""
LOADED = ("score.", "classifier.", "model.score.", "qa_outputs.", "classification_head.")
"""Names under which the classifiers of transformers look for their head, where the class is not among the learned ones."""


def find_foreign_modules(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault for the tensors whose modules the architecture does not have."""
    known, anatomy = KnownModules.of(ckpt.config), ckpt.components
    if known is None or anatomy.stack is None or anatomy.is_draft or ckpt.is_mlx:
        return
    names = list(anatomy.layout.outside)
    for stack in anatomy.layout.stacks.values():
        layers = anatomy.layers if stack is anatomy.stack else stack.layers
        names += {stack.full_name(0, rest) for parts in layers.values() for rest in parts}
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(known.module(name), []).append(name)
    if not any(known.has(module) for module in modules if module.startswith(anatomy.stack.prefix)):
        return
    stored = StoredParameters.of(ckpt)
    foreign = {
        module
        for module, members in modules.items()
        if not known.has(module)
        and not (stored is not None and stored.is_read(known, members[0]))
        and explained.moved.isdisjoint(members)
        and not any(pattern.search(name) for name in members for pattern in (MTP, SCORE, LEGAL))
    }
    if foreign:
        first = modules[min(foreign)][0]
        problem = Problem(
            f"{known.architecture} has no such {'module' if len(foreign) == 1 else 'modules'}, so transformers omits "
            f"{'its' if len(foreign) == 1 else 'their'} tensors: {join_truncated(foreign)}",
            file=ckpt.tensor_to_file.get(first) or ckpt.file_of(first.partition(".")[0]),
            key=first,
            severity="warning",
            hint="find out what wrote them: an adapter that was not merged, another model's tensors, a wrapper's prefix",
        )
        yield Fault(
            "surplus", problem, frozenset(INDEX.sub("{}", name) for module in foreign for name in modules[module])
        )


def find_unread_heads(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield a head for scores under a name that the class does not load, and a language-modelling head in a scorer."""
    config, components = ckpt.config, ckpt.components
    scorer = is_scorer(config)
    if config is None or not (components.score_head_tensors or scorer):
        return
    own = score_head_modules(config.architecture)
    if own or is_language_model(config):
        roots = [head.partition(".")[0] for head in own]
        read = tuple(f"{prefix}{root}." for prefix in ("", "model.") for root in roots) or LOADED
        loaded = read if scorer else ("v_head.",)
        names = components.score_head_tensors or (
            find_likely_heads(components) if "auto_map" not in config.value else ()
        )
        unloaded = [name for name in names if not name.startswith(loaded)]
        if unloaded and not (scorer and len(unloaded) < len(names)):
            loads = f"loads its head as {own[0]}" if scorer else "loads no such head"
            effect = " and starts the head from random numbers" if scorer else ""
            problem = Problem(
                f"{config.architecture} {loads}, so transformers omits {join_truncated(unloaded)}{effect}",
                file=ckpt.tensor_to_file[unloaded[0]],
                key=unloaded[0],
                severity="error" if scorer else "warning",
                hint="rename the tensor"
                if scorer
                else "save with an architecture that has a head, such as …ForSequenceClassification",
            )
            yield Fault("surplus", problem)
    head = components.lm_head
    if scorer and components.score_head_tensors and head is not None and head not in components.score_head_tensors:
        problem = Problem(
            f"{config.architecture} loads no LM head, but one of shape {format_shape(ckpt.tensors[head].shape)} is stored",
            file=ckpt.tensor_to_file[head],
            key=head,
            severity="info",
            hint="save the model with the class that scores",
        )
        yield Fault("surplus", problem)
