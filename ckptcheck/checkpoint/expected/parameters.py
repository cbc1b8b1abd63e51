"""Finds parameters that no stored tensor fills: outside the layers, or in every model of the architecture."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import HEAD
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.expected.absent_parts import LEAST_KINDS, describe_moved, find_moved_parts
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.incomplete_layers import KEYS_OR_VALUES, list_sharing_layers
from ckptcheck.checkpoint.siblings import SHARED, SPARSE, layer_kinds
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_layers, join_truncated

PRETRAINED = ("ForMaskedLM", "ForPreTraining")
"""Ends of the names of classes whose heads only pretraining needs."""
ROUTER = re.compile(r"(^|\.)(gate|router)\.weight$")


def find_unfilled_parameters(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield the missing parameters that every model of the class has, or that a setting or a layer type adds."""
    stored = StoredParameters.of(ckpt)
    config = ckpt.config
    if stored is None or config is None:
        return
    if not stored.table.needs:
        return
    lost_head = _list_lost_head(ckpt, stored)
    if lost_head:
        problem = Problem(
            f"nothing is stored for {join_truncated(lost_head)}: the base model was saved without the head of "
            f"{config.architecture}, and only programs that load the base model alone miss nothing",
            file=config.file,
            key="architectures",
            severity="info",
            hint="save the head too, or name the class of the base model in architectures if it is to give embeddings alone",
        )
        yield Fault("missing", problem)
    yield from _find_absent(ckpt, config, stored, explained, lost_head)
    for prefix, missing, names in _iter_lacking(ckpt, stored):
        names = [name for name in names if not (SPARSE.search(name) and _is_kind(ckpt, prefix, missing))]
        names = [name for name in names if not explained.has(f"{prefix}.{{}}.{name}")]
        if names and not explained.has_torn({*missing}):
            yield Fault("missing", _describe_lacking(config, prefix, missing, names, str(config.architecture)))
    for prefix, kind, torn, names in _iter_lost_by_type(config, stored):
        names = [name for name in names if not explained.has(f"{prefix}.{{}}.{name}")]
        if names and not explained.has_torn({*torn}):
            yield Fault("missing", _describe_lacking(config, prefix, torn, names, f'the type "{kind}"'))


def _find_absent(
    ckpt: Checkpoint, config: Config, stored: StoredParameters, explained: Explained, lost_head: Collection[str]
) -> Iterator[Fault]:
    """Yield one fault for the parameters that no tensor fills, inside or outside the layers."""
    lost_types = _list_lost_types(config, stored)
    absent = [name for name in sorted(stored.absent | lost_types) if name not in lost_head and not explained.has(name)]
    tie = config.resolved.top.find("tie_word_embeddings") if config.resolved is not None else None
    if tie is not None and tie.source == "config" and tie.value is False:
        is_language_model = ckpt.components.is_language_model
        untied = (name for name in sorted(stored.table.untied) if not (is_language_model and HEAD.search(name)))
        absent += [name for name in untied if name not in stored.places]
    explained.names.update(absent)
    for part in find_moved_parts(ckpt, stored, absent):
        absent = [name for name in absent if name not in part.parameters]
        yield describe_moved(config, part, explained)
    if not absent:
        return
    is_by_config = not {*absent}.isdisjoint(stored.given | lost_types)
    owner = f"{config.architecture} has with this config" if is_by_config else f"every {config.architecture} has"
    parts = _join_parts(absent, stored.table.needs | stored.given | lost_types | {*stored.places})
    problem = Problem(
        f"nothing is stored for {join_truncated(parts)}, which {owner}",
        file=config.file,
        key=absent[0],
        hint=f"{'copy it from the original checkpoint, or ' if parts[0] not in absent else ''}export again; until then "
        f"transformers fills {'it' if len(absent) == 1 else count(len(absent), 'parameter')} with ones or random numbers",
        names=tuple(absent),
    )
    yield Fault("missing", problem, frozenset(absent))


def _list_lost_types(config: Config, stored: StoredParameters) -> frozenset[str]:
    """Return the parameters of layer types of which no layer has anything stored, and of experts whose routers are there."""
    lost: set[str] = set()
    for types in stored.table.layer_types:
        setting = config.resolved.at(types.path) if config.resolved is not None else None
        kinds = setting.value if setting is not None and isinstance(setting.value, list) else []
        for kind, own in types.own.items():
            layers = {layer for layer, each in enumerate(kinds) if each == kind}
            names = {f"{types.prefix}.{{}}.{name}" for name in own}
            there = {name for name in names if layers & (stored.places.get(name) or set())}
            there |= {name for name in names if name.removesuffix(".weight").rpartition(".")[0] in stored.packed}
            there |= {name for name in names if name.rpartition(".")[0] in stored.packed}
            if not layers or (there and not any(map(ROUTER.search, there))):
                continue
            names = {name for name in names if not there or ".experts." in name}
            if there.isdisjoint(names):
                lost |= {name for name in names if not name.endswith("bias") and not SHARED.search(name)}
    return frozenset(lost)


def _join_parts(absent: Collection[str], known: Collection[str]) -> list[str]:
    """Return the absent parameters, those of a module of which nothing else is known in one word: the module's name."""
    found: dict[str, int] = {}
    rest = set(known) - set(absent)
    for name in absent:
        words = name.split(".")
        modules = (".".join(words[:length]) for length in range(1, len(words)))
        part = next((each for each in modules if not any(other.startswith(f"{each}.") for other in rest)), name)
        found[part] = found.get(part, 0) + 1
    single = {name for name, number in found.items() if number < LEAST_KINDS}
    parts = {f"all of {part}" for part, number in found.items() if number >= LEAST_KINDS}
    return sorted(parts) + [
        name for name in absent if name in single or any(name.startswith(f"{part}.") for part in single)
    ]


def _iter_lacking(ckpt: Checkpoint, stored: StoredParameters) -> Iterator[tuple[str, tuple[int, ...], list[str]]]:
    """Yield the prefix of a stack, layers of it, and the parameters that only its other layers have stored."""
    lacking: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for parameter in sorted(stored.needed):
        prefix, is_inside, rest = parameter.partition(".{}.")
        found = stored.places.get(parameter)
        if not is_inside or found is None:
            continue
        without = stored.list_layers(prefix) - found
        if KEYS_OR_VALUES.search(rest) and _is_language_model(ckpt, prefix):
            without -= {*list_sharing_layers(ckpt, ckpt.components.stack)}
        if without:
            lacking.setdefault((prefix, tuple(sorted(without))), []).append(rest)
    for (prefix, missing), names in lacking.items():
        yield prefix, missing, names


def _list_lost_head(ckpt: Checkpoint, stored: StoredParameters) -> list[str]:
    """Return the pretraining head of a model that was saved without it; [] for all others.

    Sentence encoders are saved so: their config still names the class with the head.
    """
    table = stored.table
    base = f"{table.base}."
    head = sorted(name for name in table.needs if not name.startswith(base))
    is_saved_alone = base != "." and not any(name.startswith(base) for name in ckpt.tensors)
    is_for_pretraining = table.architecture.endswith(PRETRAINED)
    return head if is_saved_alone and is_for_pretraining and stored.absent.issuperset(head) else []


def _describe_lacking(config: Config, prefix: str, layers: Sequence[int], names: list[str], kind: str) -> Problem:
    """Return the problem of layers that lack what transformers builds in every layer of an architecture, or of a type."""
    return Problem(
        f"{prefix}: {format_layers(layers)} {'lacks' if len(layers) == 1 else 'lack'} {join_truncated(names)}, which transformers "
        f"builds in every layer of {kind}",
        file=config.file,
        key=f"{prefix}.{layers[0]}.{names[0]}",
        hint="export again; until then transformers initializes it with random numbers",
    )


def _iter_lost_by_type(config: Config, stored: StoredParameters) -> Iterator[tuple[str, str, list[int], list[str]]]:
    """Yield a stack's prefix, a layer type, the layers of it that are torn, and the parameters that they lack.

    A setting may remove a whole part of a type, such as the shared experts; a part that has only some of its matrices is torn.
    """
    told: set[tuple[str, str, tuple[str, ...]]] = set()  # two settings may list the same types (NemotronH)
    for types in stored.table.layer_types:
        setting = config.resolved.at(types.path) if config.resolved is not None else None
        if setting is None or not isinstance(setting.value, list):
            continue
        lost: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for layer, kind in enumerate(setting.value):
            own = types.own.get(kind, frozenset()) if isinstance(kind, str) else frozenset[str]()
            there = {name for name in own if layer in (stored.places.get(f"{types.prefix}.{{}}.{name}") or ())}
            partners = {_find_part(name) for name in there}
            has_experts = any(".experts." in name for name in there)
            names = [
                name
                for name in sorted(own - there)
                if not name.endswith("bias")
                and not SHARED.search(name)
                and f"{types.prefix}.{{}}.{name}".removesuffix(".weight") not in stored.packed
                and (_find_part(name) in partners or (has_experts and ROUTER.search(name)))
            ]
            if names:
                lost.setdefault((str(kind), tuple(names)), []).append(layer)
        for (kind, absent), layers in lost.items():
            if (types.prefix, kind, absent) not in told:
                told.add((types.prefix, kind, absent))
                yield types.prefix, kind, layers, list(absent)


def _find_part(name: str) -> str:
    """Return the part of a layer that a matrix belongs to: `mlp` for `mlp.up_proj.weight`."""
    return name.removesuffix(".weight").rpartition(".")[0]


def _is_language_model(ckpt: Checkpoint, prefix: str) -> bool:
    """Whether a stack, as the built model names it, holds the language model's layers."""
    stack = ckpt.components.stack
    return stack is not None and f".{prefix}".endswith(f".{stack.prefix}")


def _is_kind(ckpt: Checkpoint, head: str, layers: Collection[int]) -> bool:
    """Whether the lists in the config give these layers kinds that no other layer has.

    The first layers of DeepSeek-V4 Flash compress no keys: their `compress_ratios` are 0.
    """
    if ckpt.config is None or not _is_language_model(ckpt, head):
        return False
    kinds = layer_kinds(ckpt.config.text, max(ckpt.components.layers, default=-1) + 1)
    own = {kinds.get(layer) for layer in layers}
    return own.isdisjoint(kind for layer, kind in kinds.items() if layer not in layers)
