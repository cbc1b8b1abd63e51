"""Finds stored tensors whose shape differs from their siblings', or from the one that the config implies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.sizes import find_other_sizes, find_other_vocabulary
from ckptcheck.checkpoint.incomplete_layers import iter_compared_stacks, list_kinds, list_sharing_layers
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import has_own_shape
from ckptcheck.checkpoint.resolved_config import ResolvedConfig
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.shape_formula import find_place
from ckptcheck.checkpoint.siblings import find_uneven_shapes
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_shape

SizeOf = Callable[[str], int | None]
Shape = tuple[int | None, ...]
UNKNOWN = -1
"""Stands for the stored size of a setting if several settings decide a dimension together."""
POSITIONS = re.compile(r"rel_pos|relative_position|position_bias")
"""Tables with a row for each distance that a layer can see."""


def find_other_shapes(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield differences from siblings, then from the vocabulary, the learned table, and the other sizes of the config."""
    shards = frozenset(explained.tensors)
    problems = (
        *_find_uneven(ckpt, explained),
        *find_other_vocabulary(ckpt, explained),
        *_find_by_table(ckpt, explained),
        *find_other_sizes(ckpt, explained),
    )
    for problem in problems:
        if problem.key not in shards:
            yield Fault("shape", problem)


def _find_uneven(ckpt: Checkpoint, explained: Explained) -> Iterator[Problem]:
    """Yield the tensors whose shape differs from all their siblings': a layer, or an expert, is torn."""
    anatomy, table = ckpt.components, WeightsTable.of(ckpt.config)
    for stack in iter_compared_stacks(ckpt):
        main = stack is anatomy.stack
        for uneven in find_uneven_shapes(stack, list_kinds(ckpt, stack), ckpt.tensors, ckpt.forms_by_template):
            if not (main and anatomy.is_language_model) and uneven.layer in (min(stack.layers), max(stack.layers)):
                continue  # the ends of an encoder may be of another width
            if not main and POSITIONS.search(uneven.name):
                continue  # one layer of an encoder may see the whole image, the others a window of it (SAM)
            learned = table.shapes.get(f"{stack.prefix}.{{}}.{uneven.name}", "") if table is not None else ""
            if not main and "?" in learned:
                continue  # some layers of an encoder may attend to the whole image (SAM), the others through a window
            name = stack.full_name(uneven.layer, uneven.name)
            explained.tensors.add(name)
            yield Problem(
                f"{stack.prefix}: in layer {uneven.layer} {uneven.name} has the shape {format_shape(uneven.shape)}, and "
                f"{format_shape(uneven.usual)} in all its siblings; transformers and vLLM refuse to load it",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="export again: the layer was damaged, or comes from another model",
            )


def _find_by_table(ckpt: Checkpoint, explained: Explained) -> Iterator[Problem]:
    """Yield the differences from the formulas learned for the architecture, one problem for each wrong setting."""
    table, config = WeightsTable.of_layers(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None:
        return
    resolved = config.resolved
    # The rows of embedding and head were held against the vocabulary; the head of a draft may have its own (EAGLE-3).
    is_known = ckpt.components.embedding is not None or ckpt.components.is_draft
    with_rows = {ckpt.components.embedding, ckpt.components.lm_head} if is_known else set()

    size_of, choose_sizes, wide = read_sizes(ckpt, resolved)
    odd: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    ranks: dict[int, list[str]] = {}
    shapes: dict[str, Shape] = {}
    method = ckpt.quantization.method if ckpt.quantization is not None else None
    for name, tensor, expected in iter_expected(ckpt, table, choose_sizes, wide):
        if (
            name in explained.tensors or 0 in tensor.shape or not has_own_shape(tensor, method)
        ):  # an empty one is CFG019's
            continue
        shapes[name] = expected
        axes = [
            axis
            for axis, (size, stored) in enumerate(zip(expected, tensor.shape, strict=False))
            if size is not None and size != stored
            if axis or name not in with_rows or "+" in table.shapes[INDEX.sub("{}", name)]
        ]
        if len(expected) != len(tensor.shape):
            if name not in with_rows:
                ranks.setdefault(len(expected), []).append(name)
        elif axes:
            decisive = table.fields_of(name, axes[0], size_of)
            if len(decisive) == 1 and explained.sizes.get(decisive[0].rpartition(".")[2]) == tensor.shape[axes[0]]:
                continue
            odd.setdefault(tuple(decisive), []).append((name, axes[0]))
    for fields, ((name, axis), *_) in odd.items():
        for field in fields:
            stored = ckpt.tensors[name].shape[axis] if len(fields) == 1 else UNKNOWN
            explained.sizes.setdefault(field.rpartition(".")[2], stored)
    for names in ranks.values():
        yield _describe_ranks(ckpt, names, shapes[names[0]])
    yield from _describe_odd(ckpt, config, table, choose_sizes, odd)


def read_sizes(ckpt: Checkpoint, resolved: ResolvedConfig) -> tuple[SizeOf, Callable[[str], SizeOf], tuple[str, ...]]:
    """Return what gives a field's size, what chooses that for a tensor's name, and the prefixes of names it treats apart."""

    def size_of(field: str) -> int | None:
        setting = resolved.at(field)
        return setting.value if setting is not None and type(setting.value) is int else None

    wide = _list_wide_layers(ckpt, resolved)

    def size_of_wide(field: str) -> int | None:
        size = size_of(field)
        return 2 * size if size is not None and field.rpartition(".")[2] == "intermediate_size" else size

    def choose_sizes(name: str) -> SizeOf:
        return size_of_wide if wide and name.startswith(wide) else size_of

    return size_of, choose_sizes, wide


def _list_wide_layers(ckpt: Checkpoint, resolved: ResolvedConfig) -> tuple[str, ...]:
    """Return the name prefixes of the layers whose feed-forward blocks are twice as wide, as in Gemma 4 E2B."""
    setting, stack = resolved.find("use_double_wide_mlp"), ckpt.components.stack
    if setting is None or setting.value is not True or stack is None:
        return ()
    return tuple(f"{stack.full_name(layer)}." for layer in list_sharing_layers(ckpt, stack))


def _describe_ranks(ckpt: Checkpoint, names: list[str], expected: Shape) -> Problem:
    """Return the problem of tensors with another number of dimensions than the model has."""
    name = names[0]
    others = f"; the same is true of {count(len(names) - 1, 'other tensor')}" if len(names) > 1 else ""
    wanted = (
        format_shape(size for size in expected if size is not None)
        if None not in expected
        else count(len(expected), "dimension")
    )
    return Problem(
        f"its shape is {format_shape(ckpt.tensors[name].shape)}, but the model has {wanted} there; "
        f"transformers refuses to load it{others}",
        file=ckpt.tensor_to_file[name],
        key=name,
        hint="export again in the shape that the model has; if that shape is intended, use the config that belongs to it",
        names=tuple(names),
    )


def _describe_odd(
    ckpt: Checkpoint,
    config: Config,
    table: WeightsTable,
    choose_sizes: Callable[[str], SizeOf],
    odd: dict[tuple[str, ...], list[tuple[str, int]]],
) -> Iterator[Problem]:
    """Yield one problem for the settings that decide the odd sizes.

    For a setting that alone decides a size, try the stored size in its place: tensors that then fit are its consequences.
    """
    assert config.resolved is not None
    waiting = dict(sorted(odd.items(), key=lambda item: len(item[0]) or 9))
    while waiting:
        fields = next(iter(waiting))
        tensors = waiting.pop(fields)
        name, axis = tensors[0]
        size_of, shape = choose_sizes(name), ckpt.tensors[name].shape
        followers = _take_followers(ckpt, table, size_of, fields[0], shape[axis], waiting) if len(fields) == 1 else []
        expected = table.expect_shape(name, size_of, shape) or ()
        wanted = format_shape(stored if size is None else size for size, stored in zip(expected, shape, strict=True))
        number = len(tensors) + len(followers) - 1
        others = f" and {count(number, 'other tensor')}" if number else ""
        settings = [setting for field in fields if (setting := config.resolved.at(field)) is not None]
        reason = "; ".join(describe(setting) for setting in settings)
        needs = f"the config needs {wanted} ({reason})" if reason else f"the model has {wanted} there"
        turned = ": it is transposed" if _is_turned(shape, expected) else ""
        yield Problem(
            f"its shape is {format_shape(shape)}, but {needs}{turned}; transformers refuses to load it{others}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="use the config of this model"
            if number
            else "use the config of this model; a tensor that does not fit that config was cut, transposed or joined over ranks",
            names=tuple(each for each, _ in (*tensors, *followers)),
        )


def _take_followers(
    ckpt: Checkpoint,
    table: WeightsTable,
    size_of: SizeOf,
    field: str,
    stored: int,
    waiting: dict[tuple[str, ...], list[tuple[str, int]]],
) -> list[tuple[str, int]]:
    """Remove from the waiting tensors, and return, each that fits if one setting has the stored size."""

    def size_with(name: str) -> int | None:
        return stored if name == field else size_of(name)

    followers: list[tuple[str, int]] = []
    for fields in [fields for fields in waiting if field in fields]:
        rest: list[tuple[str, int]] = []
        for each in waiting.pop(fields):
            (followers if _fits(ckpt, table, size_with, each[0]) else rest).append(each)
        if rest:
            waiting[fields] = rest
    return followers


def _is_turned(stored: tuple[int, ...], expected: Shape) -> bool:
    """Whether a tensor has its last two dimensions swapped."""
    return len(stored) > 1 and stored != expected and (*stored[:-2], stored[-1], stored[-2]) == expected


def _fits(ckpt: Checkpoint, table: WeightsTable, size_of: SizeOf, name: str) -> bool:
    """Whether a tensor has the shape that other sizes give it."""
    shape = ckpt.tensors[name].shape
    expected = table.expect_shape(name, size_of, shape)
    return expected is not None and all(
        size is None or size == stored for size, stored in zip(expected, shape, strict=True)
    )


def iter_expected(
    ckpt: Checkpoint, table: WeightsTable, choose_sizes: Callable[[str], SizeOf], wide: tuple[str, ...]
) -> Iterator[tuple[str, Tensor, Shape]]:
    """Yield the tensors with an unexpected shape, and the expected one, computed once per template of names where possible.

    wide: what the names begin with for which `choose_sizes` may choose otherwise.
    """
    for template, names in ckpt.layout.names_by_template.items():
        pattern = INDEX.sub("{}", names[0])
        if pattern not in table.shapes:
            continue
        by_place, sizes = (
            pattern in table.patterns_of_places,
            {choose_sizes(name) for name in (names if wide else names[:1])},
        )
        groups: dict[tuple[str, SizeOf], list[str]] = {}
        for name in names if by_place or len(sizes) > 1 else ():
            groups.setdefault((find_place(name) if by_place else "", choose_sizes(name)), []).append(name)
        for alike in groups.values() or [names]:
            expected = {
                shape: table.expect_shape(alike[0], choose_sizes(alike[0]), shape)
                for _, shape in ckpt.forms_by_template[template]
            }
            if all(shape == wanted for shape, wanted in expected.items()):
                continue
            for name in alike:
                tensor = ckpt.tensors[name]
                wanted = expected[tensor.shape]
                if wanted is not None and tensor.shape != wanted:
                    yield name, tensor, wanted
