"""Tensors do not have the sizes that the config gives them.

## What it checks
For the causal language models of transformers, and the language model within multimodal ones: which fields of the config decide
each dimension of each tensor was learned from transformers, by building every architecture with one size changed after the other.
Where config.json lacks a field, the default of its class counts. CFG012 to CFG015 check the
embedding, the head and the common decoder families; this rule checks the rest: position tables, fused projections, latent
attention, state-space layers, routers. What joins the encoders with the language model is checked where each part has the type
that the architecture has by default, and one layer of an encoder is read. A norm or a bias has one dimension. Packed tensors are
excluded. Where layers have sizes for themselves (`per_layer_config` of Gemma 4), each layer is held against its own; where
`layer_types` decides which of two sizes a layer has (Inkling, Kimi Linear), against those of its kind. Modules in a sequence
(`merger.mlp.0` and `merger.mlp.2` of Qwen2-VL) are held against those of their place.

## Why it matters
transformers stops with a size mismatch, and so does vLLM.

## How to fix
Use the config of this model, or add the key that it lacks.

## When it can be wrong
A model whose own code builds other shapes, under an architecture of transformers: use `--ignore CFG025`. Dimensions that
depend on a list, or on more than three switches, are not checked.

## Seen in
No public report: configs that lost a key.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.setting_text import INTEGER, describe
from ckptcheck.checkpoint.shape_formula import compute_size, fields_of_formula, find_place
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import count, format_shape

COMMON = re.compile(
    r"self_attn\.[qkvo]_proj\.|mlp\.((gate|up|down)_proj|experts\.\d+)\.|(input|post_attention)_layernorm\."
)
"""What CFG013 to CFG015 check in the families that they know."""


@rule(
    "CFG025",
    "weight-shape-mismatch",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and WeightsTable.of(ckpt.config) is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None:
        return
    resolved = config.resolved
    # CFG012 knows of a vocabulary where it finds the embedding. The head of a draft may have a vocabulary of its own (EAGLE-3).
    is_known = ckpt.components.embedding is not None or ckpt.components.is_draft
    elsewhere = {ckpt.components.embedding, ckpt.components.lm_head} if is_known else set()
    is_family = family_of(config) is not None

    def size_of(field: str) -> int | None:
        setting = resolved.at(field)
        return setting.value if setting is not None and type(setting.value) is int else None

    odd: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    vectors: list[tuple[str, int | None]] = []
    ranks: list[tuple[str, int]] = []
    for name, tensor, expected in _iter_expected(ckpt, table, size_of, is_family):
        # CFG012 holds the rows of the embedding and the head against the vocabulary.
        if (name in elsewhere and "+" not in table.shapes[INDEX.sub("{}", name)]) or not tensor.is_plain:
            continue
        if len(expected) == 1 and len(tensor.shape) != 1:
            vectors.append((name, expected[0]))
            continue
        if len(expected) != len(tensor.shape):
            if None in expected:
                ranks.append((name, len(expected)))
            else:
                decisive = dict.fromkeys(
                    field for axis in range(len(expected)) for field in table.fields_of(name, axis, size_of)
                )
                odd.setdefault(tuple(decisive), []).append(
                    (name, format_shape(size for size in expected if size is not None))
                )
            continue
        for axis, (size, stored) in enumerate(zip(expected, tensor.shape, strict=True)):
            if size is not None and size != stored:
                wanted = format_shape(
                    stored if size is None else size for size, stored in zip(expected, tensor.shape, strict=True)
                )
                odd.setdefault(tuple(table.fields_of(name, axis, size_of)), []).append((name, wanted))
                break
    if vectors:
        name, size = vectors[0]
        wanted = f"[{size}]" if size is not None else "one dimension"
        others = f"; so it is with {count(len(vectors) - 1, 'other tensor')}" if len(vectors) > 1 else ""
        yield Problem(
            f"its shape is {format_shape(ckpt.tensors[name].shape)}, but the model has {wanted} there; "
            f"transformers refuses to load it{others}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="store it with one dimension, as the model has it",
        )
    for name, rank in ranks[:1]:
        others = f"; so it is with {count(len(ranks) - 1, 'other tensor')}" if len(ranks) > 1 else ""
        yield Problem(
            f"its shape is {format_shape(ckpt.tensors[name].shape)}, but the model has {count(rank, 'dimension')} there; "
            f"transformers refuses to load it{others}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="store it in the shape that the model has",
        )
    for fields, tensors in odd.items():
        name, wanted = tensors[0]
        settings = [setting for field in fields if (setting := resolved.at(field)) is not None]
        others = f" and {count(len(tensors) - 1, 'other tensor')}" if len(tensors) > 1 else ""
        reason = "; ".join(describe(setting) for setting in settings)
        needs = f"the config needs {wanted} ({reason})" if reason else f"the model has {wanted} there"
        yield Problem(
            f"its shape is {format_shape(ckpt.tensors[name].shape)}, but {needs}; transformers refuses to load it{others}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="use the config of this model",
        )
    if (found := _find_unlike_layer(ckpt, table, size_of)) is not None:
        name, layer, wanted, own = found
        yield Problem(
            f"its shape is {format_shape(ckpt.tensors[name].shape)}, but per_layer_config gives layer {layer} "
            f"{own or 'nothing of its own'}, so that it is {wanted} there; transformers refuses to load it",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="use the config of this model",
        )
    for name, kind, axis, wanted, formulas in _iter_unlike_kinds(ckpt, table, size_of):
        found_settings = map(resolved.at, fields_of_formula(formulas.split(",")[axis]))
        reason = "; ".join(describe(setting) for setting in found_settings if setting is not None)
        yield Problem(
            f"its shape is {format_shape(ckpt.tensors[name].shape)}, but its layer is of the kind {kind}, for which the config "
            f"needs {wanted} ({reason}); transformers refuses to load it",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="use the config of this model",
        )


def _iter_unlike_kinds(
    ckpt: Checkpoint, table: WeightsTable, size_of: Callable[[str], int | None]
) -> Iterator[tuple[str, str, int, str, str]]:
    """Yield one tensor for each size that layers of a kind have and the config gives only another kind.

    With the kind, the dimension, the shape that layers of this kind have, and its formulas.
    """
    resolved = ckpt.config.resolved if ckpt.config is not None else None
    listed = resolved.text.settings.get("layer_types") if resolved is not None else None
    if not isinstance(listed, list):
        return
    said: set[tuple[str, str]] = set()
    for names in ckpt.layout.names_by_template.values():
        by_kind = table.kinds.get(INDEX.sub("{}", names[0]))
        if by_kind is None:
            continue
        for name in names:
            number = INDEX.search(name)
            layer = int(number[1]) if number is not None else len(listed)
            kind = listed[layer] if layer < len(listed) else None
            formulas = by_kind.get(kind) if isinstance(kind, str) else None
            tensor = ckpt.tensors[name]
            if formulas is None or not isinstance(kind, str) or not tensor.is_plain:
                continue
            expected = tuple(compute_size(formula, size_of) for formula in formulas.split(","))
            if None in expected or table.expect_shape(name, size_of, tensor.shape) != tensor.shape:
                continue  # what fits no kind is said already
            axis = next(
                (at for at, (one, two) in enumerate(zip(expected, tensor.shape, strict=True)) if one != two), None
            )
            if axis is None or (kind, formulas.split(",")[axis]) in said:
                continue
            said.add((kind, formulas.split(",")[axis]))
            yield name, kind, axis, format_shape(size for size in expected if size is not None), formulas


def _find_unlike_layer(
    ckpt: Checkpoint, table: WeightsTable, size_of: Callable[[str], int | None]
) -> tuple[str, int, str, str] | None:
    """Return a tensor whose layer has settings for itself that do not fit it: with its layer, its shape by these, and them.

    Without per_layer_config the class derives them, so that none is found.
    """
    resolved = ckpt.config.resolved if ckpt.config is not None else None
    settings = resolved.text.settings if resolved is not None else {}
    listed = settings.get("per_layer_config", "") or {}
    if resolved is None or "per_layer_config" not in settings or not isinstance(listed, dict):
        return None
    layers = {int(number): own for number, own in listed.items() if INTEGER.fullmatch(number) and isinstance(own, dict)}
    for names in ckpt.layout.names_by_template.values():
        pattern = INDEX.sub("{}", names[0])
        for name in names if pattern in table.layered else ():
            number = INDEX.search(name)
            layer = int(number[1]) if number is not None else -1
            own = layers.get(layer, {})

            def size_here(field: str, own: Mapping[str, object] = own) -> int | None:
                path, _, last = field.rpartition(".")
                value = own.get(last) if f"{path}." == resolved.text.path or not path else None
                return value if type(value) is int else size_of(field)

            tensor = ckpt.tensors[name]
            expected = tuple(compute_size(formula, size_here) for formula in table.layered[pattern].split(","))
            if tensor.is_plain and None not in expected and len(expected) == len(tensor.shape):
                sizes = [size for size in expected if size is not None]
                if tuple(sizes) != tensor.shape:
                    said = " and ".join(f"{key} {value}" for key, value in own.items())
                    return name, layer, format_shape(sizes), said
    return None


def _iter_expected(
    ckpt: Checkpoint, table: WeightsTable, size_of: Callable[[str], int | None], is_family: bool
) -> Iterator[tuple[str, Tensor, tuple[int | None, ...]]]:
    """Yield the tensors whose shape is not the expected one, with that; names with other numbers have the same one."""
    for template, names in ckpt.layout.names_by_template.items():
        if is_family and COMMON.search(names[0]):
            continue
        pattern = INDEX.sub("{}", names[0])
        if pattern not in table.shapes:
            continue
        groups: dict[str, list[str]] = {}
        for name in names if pattern in table.patterns_of_places else ():
            groups.setdefault(find_place(name), []).append(name)
        for alike in groups.values() or [names]:
            expected = {
                shape: table.expect_shape(alike[0], size_of, shape) for _, shape in ckpt.forms_by_template[template]
            }
            if all(shape == wanted for shape, wanted in expected.items()):
                continue
            for name in alike:
                tensor = ckpt.tensors[name]
                wanted = expected[tensor.shape]
                if wanted is not None and tensor.shape != wanted:
                    yield name, tensor, wanted
