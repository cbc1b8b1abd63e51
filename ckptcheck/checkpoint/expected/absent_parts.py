"""Finds whole parts of the model, such as a tower, of which nothing is stored, or all under another prefix than the model's."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import EMBEDDING
from ckptcheck.checkpoint.config import HIDDEN, Config
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.shape_formula import fields_of_formula
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count

LEAST_KINDS = 3
"""Kinds of tensors that a moved part has at least: one or two names may agree by chance."""
SENSES = (
    re.compile(r"vis|image|img|patch|pixel|vit|clip|siglip|(^|[._])eva", re.IGNORECASE),
    re.compile(r"audio|speech|sound|wav|mel(?!l)|whisper|codec", re.IGNORECASE),
)
"""Words in the names of sections and of tensors that see or hear, in the 157 structures of tests/data/structures."""
CROSS = re.compile(r"encoder_att|cross_?att|enc_?dec|encoder_decoder|src_att", re.IGNORECASE)
"""How modules are called by which a decoder looks at the encoder: all 12 structures with two stacks in tests/data/structures."""
LEAST_COMMON = 2
"""Last words of a name that a parameter and a tensor have in common at least, as `proj.weight`."""


class MovedPart(msgspec.Struct, frozen=True):
    """A part of the model whose parameters are all absent, and stored under another prefix."""

    wanted: str
    """The prefix of the parameters, with {} for each number."""
    stored: str
    """The prefix of the stored tensors, with {} for each number."""
    parameters: frozenset[str]
    tensors: tuple[str, ...]


def find_absent_parts(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield the parts that config.json describes in a section of its own and of which nothing is stored.

    A tower belongs to a section if the section alone decides its shapes: `model.audio_tower` to `audio_config`. Where the tables
    do not have the architecture, the words in the names decide. A quantizer dropped towers that it did not know, and kept the
    config (jundot/omlx#1006).
    """
    config, stored, table = ckpt.config, StoredParameters.of(ckpt), WeightsTable.of(ckpt.config)
    if config is None or ckpt.is_mlx or ckpt.components.is_draft or not ckpt.components.layers:
        return
    sections = [
        section
        for section, value in config.value.items()
        if section.endswith("_config") and isinstance(value, dict) and value
        if config.resolved is None or config.resolved.text.path != f"{section}."
    ]
    known = {section: _list_kinds(table, section) for section in sections} if table is not None else {}
    if stored is not None:
        absent = {
            section: kinds
            for section, kinds in known.items()
            if len(kinds) >= LEAST_KINDS and stored.places.keys().isdisjoint(kinds)
        }
        moved = find_moved_parts(ckpt, stored, frozenset[str]().union(*absent.values())) if absent else []
        for part in moved:
            yield describe_moved(config, part, explained)
        words = {word for names in ckpt.layout.names_by_template for word in names.split(".")}
        for section, kinds in absent.items():
            prefix = _find_prefix(kinds)
            # a tensor with the tower's own word in its name may fill it by a renaming that the tables do not have
            if prefix.rpartition(".")[2] in words or any(not kinds.isdisjoint(part.parameters) for part in moved):
                continue
            explained.parts += (f"{prefix}.",)
            effect = f"transformers fills {count(len(kinds), 'kind')} of tensors with random numbers"
            yield Fault("missing", _describe_absent(config, section, prefix, effect), kinds)
    if stored is None and (half := _find_absent_half(ckpt, config)) is not None:
        explained.patterns.append(EMBEDDING)  # it is in the decoder, and the encoder has none
        yield Fault("missing", half)
    # a class that the tables have may read a section without a part of its own, as Gemma 4 Unified and Moshi's language model
    for section in sections if table is None and stored is None else ():
        sense = next((sense for sense in SENSES if sense.search(section)), None)
        if sense is None:
            continue
        if sum(1 for name in ckpt.layout.names_by_template if sense.search(name)) < LEAST_KINDS:
            effect = "what loads it starts from random numbers, or stops"
            problem = _describe_absent(config, section, "a part of the model", effect)
            yield Fault("missing", structs.replace(problem, severity="warning"))
        elif (found := _find_absent_projector(ckpt, config, section, sense)) is not None:
            yield Fault("missing", found)


def _find_absent_half(ckpt: Checkpoint, config: Config) -> Problem | None:
    """Return that a model of two stacks has nothing of its encoder, or of its decoder, though the config counts its layers."""
    words = {word for names in ckpt.layout.names_by_template for word in names.split(".")}
    is_whole = config.get("is_encoder_decoder") is True and {"encoder", "decoder"} <= words
    matrices = (names[0] for names in ckpt.layout.names_by_template.values() if len(ckpt.tensors[names[0]].shape) > 1)
    if is_whole and not any(map(CROSS.search, matrices)):
        return Problem(
            "is_encoder_decoder is true, and no layer of the decoder has a cross-attention to the encoder: loaders start it from "
            "random numbers, or stop",
            file=config.file,
            key="is_encoder_decoder",
            hint="copy the cross-attention from the original checkpoint, or export again",
        )
    for half, other in (("encoder", "decoder"), ("decoder", "encoder")):
        key = next((key for key in (f"{half}_layers", f"num_{half}_layers") if config.number(key)), None)
        if key is not None and config.get("is_encoder_decoder") is True and half not in words and other in words:
            return Problem(
                f"{config.describe(key)}, and nothing of the {half} is stored: loaders start it from random numbers, or stop",
                file=config.file,
                key=key,
                hint=f"copy the {half} from the original checkpoint, or export again",
            )
    return None


def _find_absent_projector(ckpt: Checkpoint, config: Config, section: str, sense: re.Pattern[str]) -> Problem | None:
    """Return that no matrix leads from the width of a tower to another one of the language model; None where one may."""
    own, width = config.value[section].get("hidden_size"), config.integer(*HIDDEN)
    stack = ckpt.components.stack
    if type(own) is not int or width is None or own == width or stack is None:
        return None
    ends, inner = (ckpt.components.embedding, ckpt.components.lm_head), config.value[section].get("intermediate_size")
    of_tower = False
    for names in ckpt.layout.names_by_template.values():
        # a norm may be the first of a numbered block of matrices
        name = next((name for name in names[:LEAST_KINDS] if len(ckpt.tensors[name].shape) > 1), names[0])
        shape, is_inside = ckpt.tensors[name].shape, name.startswith(f"{stack.prefix}.")
        if len(shape) < 2 or name in ends:
            continue
        if len(names) >= LEAST_KINDS and own in shape and sense.search(name) and inner == width:
            of_tower = True  # a feed-forward block of the tower, as wide inside as the language model
            continue
        if (own if is_inside else width) in shape or not ckpt.tensors[name].is_plain:
            return None
        of_tower = of_tower or (sense.search(name) is not None and own in shape)
    if not of_tower:
        return None
    return Problem(
        f"{section} is {own:,} wide and the language model {width:,}, and no matrix leads from one to the other: the projector is "
        "not stored",
        file=config.file,
        key=section,
        severity="warning",
        hint="copy the projector from the original checkpoint, or export again",
    )


def _describe_absent(config: Config, section: str, part: str, effect: str) -> Problem:
    return Problem(
        f"{section} describes {part}, and nothing of it is stored; {effect}",
        file=config.file,
        key=section,
        hint=f"copy it from the original checkpoint; remove {section} only if the model is to have no such part",
    )


def _list_kinds(table: WeightsTable, section: str) -> frozenset[str]:
    """Return the parameters whose sizes one section of the config decides alone, with all others of their part."""
    prefix = _find_prefix(
        [
            kind
            for kind, formulas in table.shapes.items()
            if (fields := fields_of_formula(formulas)) and all(field.startswith(f"{section}.") for field in fields)
        ]
    )
    return frozenset(kind for kind in table.shapes if prefix and kind.startswith(f"{prefix}."))


def _find_prefix(kinds: Collection[str]) -> str:
    """Return the module that parameters have in common; '' for none, and for the model itself."""
    if not kinds:
        return ""
    first, last = (name.split(".") for name in (min(kinds), max(kinds)))
    shared = next((at for at, (one, two) in enumerate(zip(first, last, strict=False)) if one != two), len(first) - 1)
    words = first[:shared]
    if "{}" in words:
        words = words[: words.index("{}")]
    return ".".join(words) if words and words != ["model"] else ""


def find_moved_parts(ckpt: Checkpoint, stored: StoredParameters, absent: Collection[str]) -> list[MovedPart]:
    """Return the parts of which most absent parameters have a tensor with the same last words under one other prefix.

    save_pretrained of Qwen3.5 writes `model.visual` as `model.language_model.visual` (huggingface/transformers#45357).
    """
    table = WeightsTable.of(ckpt.config)
    known = stored.table.needs | stored.given | (table.shapes.keys() if table is not None else frozenset())
    kinds = {INDEX.sub("{}", names[0]): names for names in ckpt.layout.names_by_template.values()}
    strangers: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for kind, names in kinds.items():
        if known.isdisjoint(INDEX.sub("{}", target) for target in stored.table.name_parameters(names[0])):
            words = tuple(kind.split("."))
            strangers[words[-LEAST_COMMON:]].append(words)
    moves: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    taken: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[str, ...]]] = defaultdict(list)
    for parameter in sorted(absent):
        words = tuple(parameter.split("."))
        for other in strangers[words[-LEAST_COMMON:]]:
            length = _count_common(words, other)
            move = words[:-length], other[:-length]
            moves[move] += 1
            taken[move].append(words)
    found: list[MovedPart] = []
    explained: set[tuple[str, ...]] = set()
    for (wanted, other), number in moves.most_common():
        parts = [words for words in taken[wanted, other] if words not in explained]
        if number < LEAST_KINDS or len(parts) < number:
            continue
        # the words that all have in common belong to the part's name: model.visual, not model
        shared = _count_common(*(tuple(reversed(words[len(wanted) :])) for words in (min(parts), max(parts))))
        inner = min(parts)[len(wanted) :][:shared]
        prefix, origin = ".".join((*wanted, *inner)), ".".join((*other, *inner))
        if 2 * len(parts) < sum(name.startswith(f"{prefix}.") for name in absent):
            continue
        # one word behind the prefix may have found its place by chance, as A_log; now the prefix is known
        inside = {words for name in absent if name.startswith(f"{prefix}.") for words in [tuple(name.split("."))]}
        parts += [
            words
            for words in sorted(inside.difference(parts))
            if ".".join((origin, *words[len(prefix.split(".")) :])) in kinds
        ]
        explained.update(parts)
        tensors = [
            name
            for kind, names in kinds.items()
            if kind.startswith(f"{origin}.")
            or (not origin and kind in {".".join(words[len(wanted) :]) for words in parts})
            for name in names
        ]
        found.append(MovedPart(prefix, origin, frozenset(".".join(words) for words in parts), tuple(tensors)))
    return found


def describe_moved(config: Config, part: MovedPart, explained: Explained) -> Fault:
    """Return the fault of a part that is stored under another prefix, and mark its parameters and tensors as decided."""
    explained.parts += (f"{part.wanted}.",)
    explained.moved |= {*part.tensors}
    wanted, there = (prefix.partition(".{}")[0] for prefix in (part.wanted, part.stored))
    if wanted == there:  # another module in each layer
        wanted, there = part.wanted, part.stored
    number = len(part.tensors)
    problem = Problem(
        f"nothing is stored under {wanted}, where transformers looks for it: its {count(number, 'tensor')} "
        f"{'is' if number == 1 else 'are'} here, {f'under {there}' if there else 'without a prefix'}",
        file=config.file,
        key=wanted,
        hint=f"rename {there}.… to {wanted}.…" if there else f"put {wanted}. in front of their names",
        names=part.tensors,
    )
    return Fault("missing", problem, part.parameters)


def _count_common(one: tuple[str, ...], two: tuple[str, ...]) -> int:
    """Return how many last words two names have in common."""
    number = 0
    for first, second in zip(reversed(one), reversed(two), strict=False):
        if first != second:
            break
        number += 1
    return number
