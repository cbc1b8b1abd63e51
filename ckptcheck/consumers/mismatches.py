"""Finds the modules that a consumer builds quantized and the checkpoint stores unquantized, or the reverse."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.expected.absent_parts import SENSES
from ckptcheck.checkpoint.quantization.quantization import IgnoreEntry
from ckptcheck.consumers.base import ConsumerError, Decision, Module, UnknownBehavior
from ckptcheck.consumers.consumer import Consumer
from ckptcheck.consumers.entries import EntryList, parse_exact_or_regex
from ckptcheck.consumers.evaluation import Evaluation, evaluate_consumer
from ckptcheck.consumers.registry import CONSUMERS, list_default_consumers
from ckptcheck.consumers.structures import NEVER_QUANTIZED
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_PATTERN = 200
"""Longest entry, in characters, that gets a suggested correction: a longer one is hardly a typing error."""
STATE_SPACE = re.compile(r"mamba|ssm|linear_?att|delta_?net", re.IGNORECASE)
"""Words of families for a layer's state space model or linear attention; its parameters have an `A_log` in each of them."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Mismatch(msgspec.Struct, frozen=True):
    """A module that a consumer builds quantized and the checkpoint stores unquantized, or the reverse."""

    consumer: Consumer
    module: str
    """Its path in the checkpoint."""
    target_module: Module
    """The consumer's module that loads it."""
    decision: Decision
    is_stored_quantized: bool


def evaluate_checkpoint(ckpt: Checkpoint, consumers: tuple[str, ...] | None = None) -> dict[str, Evaluation]:
    """Evaluate consumers, once for all rules. {} if the checkpoint is not quantized or names no method.

    consumers: their names; None: the consumers in the options of the checkpoint; (): the engines, for which the first expert
    of a layer stands for all experts that are stored like it.
    """
    return _evaluate(ckpt, ckpt.options.consumers if consumers is None else consumers)


@remembered
def _evaluate(ckpt: Checkpoint, consumers: tuple[str, ...]) -> dict[str, Evaluation]:
    quantization = ckpt.quantization
    if quantization is None or quantization.main_declaration is None or quantization.method is None:
        return {}
    document = quantization.main_declaration.document()
    names = map_stored_modules(ckpt)
    # the engines decide on the experts of a layer by the names of expert 0
    if not consumers:
        names = _leave_out_like_first_expert(ckpt, names)
    packed = [name for name, quantized in names.items() if quantized]
    plain = [name for name, quantized in names.items() if not quantized]
    architecture = ckpt.config.architecture if ckpt.config is not None else None
    return {
        consumer: evaluate_consumer(
            consumer, architecture, names, document, quantization.method, packed=packed, plain=plain
        )
        for consumer in consumers or list_default_consumers()
        if consumer in CONSUMERS
    }


def _leave_out_like_first_expert(ckpt: Checkpoint, names: Mapping[str, bool]) -> dict[str, bool]:
    """Return the modules without the further experts' modules that are stored like expert 0's."""
    if _has_experts_alike(ckpt):
        return {
            name: quantized for name, quantized in names.items() if ".experts." not in name or ".experts.0." in name
        }
    kept = {}
    # Modules of one name in many experts follow each other, so that most are the same module of expert 0 as the one before.
    before: tuple[str, str] | None = None
    first: bool | None = None
    for name, quantized in names.items():
        layer, _, expert = name.partition(".experts.")
        number, inside, rest = expert.partition(".")
        if (layer, rest) != before:
            before, first = (layer, rest), names.get(f"{layer}.experts.0.{rest}")
        if not inside or number == "0" or first != quantized:
            kept[name] = quantized
    return kept


def _has_experts_alike(ckpt: Checkpoint) -> bool:
    """Whether all experts are stored quantized or all are not, and every layer numbers them from 0, as nearly all models do."""
    assert ckpt.quantization is not None
    storages = ckpt.quantization.storages.items()
    ways = {storage.is_quantized for storage, modules in storages if any(".experts." in module for module in modules)}
    if len(ways) > 1 or any(prefix.endswith("experts") for prefix in ckpt.layout.stacks):
        return False
    groups = [of_layer for stack in ckpt.layout.stacks.values() for of_layer in stack.groups.values()]
    return all(
        "experts." not in rest and (0 in members or not group.endswith("experts"))
        for of_layer in groups
        for group, of_group in of_layer.items()
        for rest, members in of_group.items()
    )


def to_first_expert(name: str) -> str:
    """Replace the number of an expert in a module's name by 0; return other names as they are."""
    layer, inside, rest = name.partition(".experts.")
    _, inside, projection = rest.partition(".") if inside else ("", "", "")
    return f"{layer}.experts.0.{projection}" if inside else name


@remembered
def map_stored_modules(ckpt: Checkpoint) -> Mapping[str, bool]:
    """Return module → whether it is stored quantized, for modules with a weight of two or more dimensions.

    Experts that share a tensor are one module: ``model.layers.0.mlp.experts``.
    """
    quantized: dict[str, bool] = {}
    assert ckpt.quantization is not None
    for storage, modules in ckpt.quantization.storages.items():
        weight = storage.weight
        if weight is None or (len(weight.shape) < 2 and not storage.is_quantized):
            continue
        if weight.ending.startswith("."):
            quantized.update(dict.fromkeys(modules, storage.is_quantized))
            continue
        for module in modules:
            name = module.rpartition(".")[0]
            quantized[name] = quantized.get(name, False) or storage.is_quantized
    return quantized


def find_mismatches(ckpt: Checkpoint, *, quantized: bool) -> list[Mismatch]:
    """Return the modules that are stored quantized (or not) and that a consumer builds the other way.

    It leaves out a consumer that does not know the method and builds no module quantized, because the checkpoint is not meant
    for it; and a consumer whose class for the architecture is unknown, see `require_known_architecture`. If a consumer's
    modules are guesses, only some count, see `_is_certain`. A trainer that sends weights loads nothing, see
    `find_sync_mismatches`.
    """
    return [mismatch for mismatch in _find_all_mismatches(ckpt) if mismatch.is_stored_quantized == quantized]


@remembered
def _find_all_mismatches(ckpt: Checkpoint) -> list[Mismatch]:
    return [mismatch for mismatch, is_certain in _judge_mismatches(ckpt) if is_certain]


def find_uncertain_mismatches(ckpt: Checkpoint) -> list[Mismatch]:
    """Return the modules that a consumer would build in another way than stored if the guess of its modules is right.

    It leaves out plain convolutions, which no consumer quantizes.
    """
    uncertain = [mismatch for mismatch, is_certain in _judge_mismatches(ckpt) if not is_certain]
    if not uncertain:
        return []
    assert ckpt.quantization is not None
    stored = ckpt.quantization.storage_by_module
    weights = (stored[mismatch.module].weight if mismatch.module in stored else None for mismatch in uncertain)
    return [
        mismatch
        for mismatch, weight in zip(uncertain, weights, strict=True)
        if mismatch.is_stored_quantized or weight is None or len(weight.shape) == 2
    ]


@remembered
def _judge_mismatches(ckpt: Checkpoint) -> list[tuple[Mismatch, bool]]:
    """Return all mismatches, each with whether the consumer's answer is reliable."""
    is_quantized = map_stored_modules(ckpt)
    found = []
    for evaluation in evaluate_checkpoint(ckpt).values():
        decisions = _distinct_decisions(evaluation)
        if (
            evaluation.consumer.sends_weights
            or evaluation.is_unknown
            or not any(decision.quantized for _, decision in decisions)
        ):
            continue
        found += [
            (
                Mismatch(evaluation.consumer, name, module, decision, is_quantized[name]),
                _is_certain(ckpt, evaluation, name, module, decision),
            )
            for module, decision in decisions
            if decision.quantized is not None
            for name in module.sources
            if decision.quantized is not is_quantized[name]
        ]
    return found


def _is_certain(ckpt: Checkpoint, evaluation: Evaluation, name: str, module: Module, decision: Decision) -> bool:
    """Whether a consumer's answer on a module is reliable although the module is a guess.

    It is for the linear layers and experts of the language model's own layers, on which only a list decides. If another
    consumer builds such a module as it is stored, the guess is more likely wrong than the checkpoint. It is also for a module
    that is stored quantized and that an entry ignores, under the name to which the consumer's class is known to rename it, or as
    a part that sees or hears with anything in front (`re:.*vision_tower.*`): classes leave such a part its name.
    """
    if not module.is_guess:
        return True
    stored = map_stored_modules(ckpt)[name]
    weight = f"{name}.weight"
    entry = decision.entry or ""
    is_part = entry.startswith("re:.*") and any(sense.search(entry) and sense.search(name) for sense in SENSES)
    if stored and decision.quantized is False and entry and (is_part or evaluation.rename(weight) != weight):
        return True
    stack = ckpt.components.stack
    if is_unusual_module(name) or stack is None or not name.startswith(f"{stack.prefix}."):
        return False
    others = (other.decisions.get(name) for other in evaluate_checkpoint(ckpt).values() if not other.is_unknown)
    return not any(each is not None and each[1].quantized is stored for each in others)


def require_known_architecture(ckpt: Checkpoint) -> None:
    """Skip a rule, after it has checked all consumers, if ckptcheck does not know what one of them builds. Raises Skip."""
    for evaluation in evaluate_checkpoint(ckpt).values():
        if evaluation.reason is not None:
            raise Skip(f"{evaluation.consumer.label}: {evaluation.reason}")
        if evaluation.is_unknown and ckpt.config is not None:
            architecture = ckpt.config.architecture or "a model without architectures"
            raise Skip(f"which modules {evaluation.consumer.label} builds for {architecture} is not known to ckptcheck")
    for mismatch in find_uncertain_mismatches(ckpt):
        raise Skip(
            f"{mismatch.consumer.label} was never built with this architecture: whether it builds {mismatch.module} as it is "
            "stored is not known"
        )


def _distinct_decisions(evaluation: Evaluation) -> list[tuple[Module, Decision]]:
    """Return each module that a consumer builds once, however many modules of the checkpoint it loads."""
    return list({id(pair): pair for pair in evaluation.decisions.values()}.values())


def find_sync_mismatches(ckpt: Checkpoint, consumers: tuple[str, ...] | None = None) -> list[tuple[Mismatch, Mismatch]]:
    """Return the modules that a trainer packs when it syncs weights and an engine builds unquantized, or the reverse.

    Each as (the trainer's side, the engine's side). consumers: see `evaluate_checkpoint`.
    """
    evaluations, is_quantized = evaluate_checkpoint(ckpt, consumers).values(), map_stored_modules(ckpt)
    return [
        (
            Mismatch(sender.consumer, name, *sender.decisions[name], is_quantized[name]),
            Mismatch(receiver.consumer, name, module, decision, is_quantized[name]),
        )
        for sender in evaluations
        if sender.consumer.sends_weights
        for receiver in evaluations
        if receiver.consumer.sync_effect is not None
        for name, (module, decision) in receiver.decisions.items()
        if name in sender.decisions and _are_opposite(decision, sender.decisions[name][1])
        # of a class that is not known, routers are: see NEVER_QUANTIZED
        if not receiver.is_unknown or name.rpartition(".")[2] in NEVER_QUANTIZED
    ]


def _are_opposite(one: Decision, other: Decision) -> bool:
    return None not in (one.quantized, other.quantized) and one.quantized != other.quantized


class Refusal(msgspec.Struct, frozen=True):
    """An error that a consumer raises at modules; errors that differ only in numbers count as one."""

    consumer: Consumer
    error: str
    """The error at the first module."""
    modules: tuple[str, ...]
    """The modules, in order."""
    splits_module: bool
    """Whether the lists of the config treat the shards of a fused module differently."""


def find_refusals(ckpt: Checkpoint) -> list[Refusal]:
    """Return what consumers raise at single modules."""
    refusals = []
    for evaluation in evaluate_checkpoint(ckpt).values():
        errors: dict[tuple[str, bool], dict[str, str]] = {}
        for module, decision in () if evaluation.is_unknown else _distinct_decisions(evaluation):
            if decision.error is not None and all(
                _is_certain(ckpt, evaluation, name, module, decision) for name in module.sources
            ):
                key = (to_template(decision.error), decision.splits_module)
                errors.setdefault(key, {})[module.name] = decision.error
        for (_, splits_module), alike in errors.items():
            modules = tuple(sort_modules(alike))
            refusals.append(Refusal(evaluation.consumer, alike[modules[0]], modules, splits_module))
    return refusals


@cache
def is_unusual_module(name: str) -> bool:
    """Whether engines may build this module differently; they all build attention, MLPs and experts alike."""
    return not re.search(r"\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|experts)$|\.experts\.", name)


def to_template(name: str) -> str:
    """Replace the numbers in a module's name by {}."""
    return _NUMBER.sub("{}", name)


def sort_modules(names: Iterable[str]) -> list[str]:
    """Sort modules by name, layer 10 after layer 9."""
    return sorted(names, key=natural_sort_key)


def find_unused_entries(ckpt: Checkpoint) -> list[tuple[IgnoreEntry, str | None]]:
    """Return the entries of the ignore lists that match no module for any consumer that reads them, each with a correction or None.

    It leaves out entries that match nothing without being a mistake: a module without a matrix, a parent of modules, and the
    head of a model that has no head of its own mean something to the tool that wrote them; a trainer that sends weights reads
    the names of parameters (`find_trainer_entries`); and the module may be in a shard that is missing.
    """
    assert ckpt.quantization is not None
    readers = _list_readers(ckpt)
    unused = _intersect_unused(readers) - set(find_trainer_entries(ckpt))
    unused -= _match_missing_tensors(ckpt, unused)
    if not any(entry.text in unused for entry in ckpt.quantization.ignore):
        return []
    by_form: dict[str, list[str]] = {}
    for name in sorted(map_stored_modules(ckpt)):
        by_form.setdefault(to_template(name), []).append(name)
    modules = {name.rpartition(".")[0] for name in ckpt.tensors}
    parents = {name[:at] for name in modules for at in range(len(name)) if name[at] == "."}
    harmless = modules | parents | {"lm_head", "re:.*lm_head"}
    found = [entry for entry in ckpt.quantization.ignore if entry.text in unused and entry.text not in harmless]
    packed = _list_packed(ckpt)
    mixers = {name.removesuffix(".A_log") for name in ckpt.tensors if name.endswith(".A_log")}
    entries = [
        (entry, _correct(entry.text, by_form) or _find_part_meant(entry.text, packed, mixers))
        if at < MOST_CORRECTED and len(entry.text) < MAX_PATTERN
        else (entry, None)
        for at, entry in enumerate(found)
    ]
    # it is a slip if what it would mean is packed against it, or built quantized and stored plain: another entry may name that part
    is_stored = map_stored_modules(ckpt)
    chosen = [(name, decision) for reader in readers for name, (_, decision) in reader.decisions.items()]
    missed = [name for name, decision in chosen if decision.quantized and not is_stored[name]]
    is_guess = any(evaluation.is_guess for evaluation in readers)
    slips = []
    for entry, meant in entries:
        # of guessed modules only a name of transformers' model, which stored names and engines do not have, says what is meant
        hurt = packed if is_guess and not entry.text.startswith("re:model.") else [*packed, *missed]
        is_slip = meant is not None and _matches_any(meant, hurt)
        if is_slip or not is_guess:
            slips.append((entry, meant if is_slip else None))
    return slips


def find_trainer_entries(ckpt: Checkpoint) -> list[str]:
    """Return the entries that match no module of an engine, and a parameter of a trainer that sends weights: it wrote the list.

    Plain entries count only where they are a parameter's whole name: a prefix may be a slip.
    """
    unused = _intersect_unused([reader for reader in _list_readers(ckpt) if not reader.consumer.sends_weights])
    senders = tuple(name for name, consumer in CONSUMERS.items() if consumer.sends_weights)
    if not unused or not senders:
        return []
    read = {
        text
        for sender in evaluate_checkpoint(ckpt, senders).values()
        for key in sender.lists
        for text in unused - set(sender.unused_entries(key))
    }
    return sorted(
        text for text in read if text.startswith("re:") or text.removesuffix(".weight") in map_stored_modules(ckpt)
    )


def _list_readers(ckpt: Checkpoint) -> list[Evaluation]:
    return [each for each in evaluate_checkpoint(ckpt).values() if each.lists and not each.is_unknown]


def _intersect_unused(readers: Iterable[Evaluation]) -> set[str]:
    """Return the entries that no reader uses; none without a reader."""
    unused = [{text for key in reader.lists for text in reader.unused_entries(key)} for reader in readers]
    return set.intersection(*unused) if unused else set()


def _match_missing_tensors(ckpt: Checkpoint, texts: Iterable[str]) -> set[str]:
    """Return the entries that match a tensor, a module or a parent that the index places in a file that is not there."""
    places = ckpt.index.weight_map if ckpt.index is not None and not ckpt.index_agrees else {}
    missing = places.keys() - ckpt.tensors.keys()
    names = {name[:at] for name in missing for at in (*range(len(name)), len(name)) if name[at : at + 1] in (".", "")}
    entries = EntryList(sorted(texts), parse_exact_or_regex)
    found: set[int] = set()
    try:
        for name in names if len(entries) else ():
            found.update(entries.match_all(name))
    except (ConsumerError, UnknownBehavior):
        return set(texts)
    return {entries.original(number) or "" for number in found}


MOST_CORRECTED = 10
"""Entries that get a suggested correction: a hostile list has thousands of entries that match nothing."""


def _correct(text: str, by_form: Mapping[str, list[str]]) -> str | None:
    """Return the probably intended entry: with ``re:``, without a wrapper's prefix or suffix, or the nearest name.

    by_form: names with {} for each number → the names of modules.
    """
    names = [name for alike in by_form.values() for name in alike]
    if not text.startswith("re:") and re.search(r"(?<![.)\]])\*", text):
        return None  # a pattern of file names, as ModelOpt writes: `layers.61*` is no regex for layer 6
    if text.startswith("re:") or re.search(r"[\\*^$|]", text):
        bare = text.removeprefix("re:")
        patterns = [f"re:.*{bare}", f"re:.*{bare.removeprefix('model.')}"] if bare != text else [f"re:{text}"]
        return next((pattern for pattern in patterns if _matches_any(pattern, names)), None)
    parts = text.split(".")
    shorter = [text.removesuffix(".linear"), text.removesuffix(".weight"), ".".join(parts[1:]), ".".join(parts[2:])]
    for one in shorter:
        if one and one != text and (known := next((n for n in names if f".{n}".endswith(f".{one}")), None)):
            return known
    # the nearest form of names, then the name of that form with the same numbers
    if not (near := get_close_matches(to_template(text), by_form, 1, 0.85)):
        return None
    numbers = iter(_NUMBER.findall(text))
    same = re.sub(r"\{\}", lambda _: next(numbers, ""), near[0])
    return same if same in by_form[near[0]] else by_form[near[0]][0]


def _list_packed(ckpt: Checkpoint) -> list[str]:
    return [name for name, quantized in map_stored_modules(ckpt).items() if quantized]


def matches_packed_module(ckpt: Checkpoint, text: str) -> bool:
    """Whether an entry of compressed-tensors matches the stored name of a module that is stored quantized."""
    return _matches_any(text, _list_packed(ckpt))


def _find_part_meant(text: str, packed: Iterable[str], mixers: Collection[str]) -> str | None:
    """Return a regex of the part that an entry's words mean, if that is packed: `re:.*vision_tower.*`.

    mixers: the modules of state space models and of linear attention, which families call otherwise.
    """
    for sense in SENSES:
        words = (word for name in packed if sense.search(text) for word in name.split(".") if sense.search(word))
        if (word := next(words, None)) is not None and word not in text:
            return f"re:.*{word}.*"
    inside = [name.rpartition(".") for name in packed if STATE_SPACE.search(text) and name.rpartition(".")[0] in mixers]
    if not inside:
        return None
    return rf"re:.*{inside[0][0].rpartition('.')[2]}\.({'|'.join(sorted({last for *_, last in inside}))})$"


def matches_stored_name(ckpt: Checkpoint, text: str) -> bool:
    """Whether an entry of compressed-tensors matches the stored name of a module."""
    return _matches_any(text, map_stored_modules(ckpt))


def _matches_any(text: str, names: Iterable[str]) -> bool:
    entries = EntryList([text], parse_exact_or_regex)
    try:
        return any(entries.all_matches(name) for name in names)
    except (ConsumerError, UnknownBehavior):
        return False
