"""transformers finds a tensor under its stored name, and vLLM looks for it under another one.

## What it checks
For an architecture whose modules in vLLM are recorded: a head, or a whole part such as a vision tower, that vLLM would load under
another prefix than the stored one, where transformers takes both names for the same parameter. Names that neither of them knows are
told by CFG003 and CFG016.

## Why it matters
transformers reads older names, names without its own prefix (`layers.0…` for `model.layers.0…`), and names with it where there is
none (`model.lm_head`). vLLM 0.32 stops at the first such tensor. transformers 5.24 itself saves the vision tower of LLaVA,
PaliGemma and Gemma 3 as `vision_tower.encoder…`, where releases have `vision_tower.vision_model.encoder…`.

## How to fix
Rename the tensors as the hint says: transformers reads these names too. It is an info where transformers renames the stored names
by a rule of the architecture, and so may have saved them, and a warning where only its own prefix is too much or too little.

## When it can be wrong
A model without its head is left out, as is one with the files of sentence-transformers: vLLM serves it for embeddings under a base
model's names, too.
A checkpoint that only transformers reads loses nothing, and a later vLLM may know the names: use `--ignore CFG052`, or ask yours
with `--dry-load vllm`.

## Seen in
What vLLM 0.32 says to checkpoints of LLaVA and Gemma 3 that transformers 5.24 saved, and to a Llama under such names;
huggingface/transformers#45357 (the class of names)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.expected.ends import OF_EMBEDDERS
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import unquantized_name
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.consumers.registry import CONSUMERS, list_default_consumers
from ckptcheck.consumers.structures import ParameterStructures
from ckptcheck.text.formatting import count

LEAST_KINDS = 3
"""Kinds of modules that a part has at least, if it is not the head: one or two names may agree by chance."""


@rule("CFG052", "unserved-name", severity="warning", on="config", when=lambda ckpt: not ckpt.is_partial)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    stored = StoredParameters.of(ckpt)
    if stored is None:
        return
    own = stored.table.needs | stored.table.untied
    kinds: dict[str, list[str]] = {}
    for names in ckpt.layout.names_by_template.values():
        plain = unquantized_name(names[0]) or ""
        if plain.endswith(".weight") and len(ckpt.tensors[names[0]].shape) > 1:
            kinds.setdefault(INDEX.sub("{}", plain.removesuffix("weight"))[:-1], []).extend(names)
    for consumer in (
        CONSUMERS[name] for name in ckpt.options.consumers or list_default_consumers() if name in CONSUMERS
    ):
        if not consumer.stops_at_unknown_tensors or isinstance(consumer.structures, ParameterStructures):
            continue
        for (prefix, wanted), modules in consumer.structures.find_other_prefixes(
            ckpt.config.architecture, kinds
        ).items():
            new = [f"{wanted}.{module[len(prefix) :].lstrip('.')}".lstrip(".") for module in modules]
            is_head = new == ["lm_head"]
            same = [
                bool(stored.table.name_parameters(f"{one}.weight") & stored.table.name_parameters(f"{other}.weight"))
                for one, other in zip(modules, new, strict=True)
            ]
            if not prefix and wanted == stored.table.base and _is_for_embeddings(ckpt):
                continue
            if not all(same) or "{}" in f"{prefix}{wanted}" or not (is_head or len(modules) >= LEAST_KINDS):
                continue
            tensors = [
                name
                for name in (kinds[modules[0]] if is_head else ckpt.tensors)
                if name.startswith(f"{prefix}." if prefix else "") and INDEX.sub("{}", name) not in own
            ]
            yield Problem(
                f"transformers finds {count(len(tensors), 'tensor')} {f'under {prefix}' if prefix else 'without a prefix'}, and "
                f"{consumer.title} {consumer.version} stops there: it looks for {'it' if len(tensors) == 1 else 'them'} "
                f"{f'under {wanted}' if wanted else 'without that prefix'}",
                file=ckpt.tensor_to_file[tensors[0]],
                key=tensors[0],
                severity="warning" if {prefix, wanted} == {"", stored.table.base} else "info",
                hint=f"{_write_hint(prefix, wanted, tensors)}: transformers reads such names as well",
                names=tuple(tensors),
            )


def _is_for_embeddings(ckpt: ConfiguredCheckpoint) -> bool:
    """Whether it is a model without its head: vLLM serves one for embeddings under a base model's names, too."""
    has_head = ckpt.components.lm_head is not None or ckpt.components.is_tied
    return not has_head or any(name in ckpt.files for name in OF_EMBEDDERS)


def _write_hint(prefix: str, wanted: str, tensors: list[str]) -> str:
    names = "its name" if len(tensors) == 1 else "their names"
    if not prefix:
        return f"put {wanted}. in front of {names}"
    return f"rename {prefix}.… to {wanted}.…" if wanted else f"remove {prefix}. from {names}"
