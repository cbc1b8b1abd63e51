"""Rewrites the ignore list of a config, so that every chosen consumer builds each module as it is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.consumers.base import Decision
from ckptcheck.consumers.evaluation import Evaluation, evaluate_consumer
from ckptcheck.consumers.mismatches import (
    evaluate_checkpoint,
    find_unused_entries,
    is_unusual_module,
    map_stored_modules,
    sort_modules,
    to_template,
)

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

KEYS = {
    "compressed-tensors": ("ignore",),
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "modelopt": ("ignore", "exclude_modules"),
    "awq": ("modules_to_not_convert",),
}
"""Method → the keys its ignore list may have. If the config has none of them, the last one is written (for ModelOpt in
config.json, the first)."""
MAX_ROUNDS = 6
"""Rounds of removing harmful entries and adding missing ones. A list that does not settle by then is left to the user."""
MAX_PRUNED = 32
"""Most new entries that are tried one by one for removal, each with an evaluation of all modules."""


def rewrite_ignore_list(ckpt: Checkpoint) -> tuple[str, list[str]] | None:
    """Return the key of the list and its corrected entries; None if the list is right as it is.

    Entries that do no harm stay; new regexes are anchored.

    Raises:
        ValueError: with the reason, if no list makes all consumers build each module as it is stored.

    """
    quantization = ckpt.quantization
    if quantization is None or quantization.main_declaration is None or not evaluate_checkpoint(ckpt):
        return None
    method, config = quantization.main_declaration.method or "", quantization.config
    if method not in KEYS:
        raise ValueError(f"{method} has no list of modules to write")
    is_quantized = map_stored_modules(ckpt)
    default_key = KEYS[method][
        0 if method == "modelopt" and quantization.main_declaration.file == "config.json" else -1
    ]
    key = next((key for key in KEYS[method] if isinstance(config.get(key), list)), default_key)
    originals = [entry for entry in config.get(key, []) if isinstance(entry, str)]
    misspelt = {entry.text for entry, meant in find_unused_entries(ckpt) if meant is not None}
    entries = [entry for entry in dict.fromkeys(originals) if entry not in misspelt and _is_valid_entry(entry)]
    unreadable = {
        name: evaluation.error or evaluation.reason
        for name, evaluation in _evaluate(ckpt, is_quantized, {key: []}).items()
        if not evaluation.decisions
    }
    if len(unreadable) == len(evaluate_checkpoint(ckpt)):
        raise ValueError("; ".join(f"{name}: {why}" for name, why in unreadable.items()))

    def evaluate_entries(candidate: list[str]) -> dict[str, Evaluation]:
        evaluations = _evaluate(ckpt, is_quantized, {key: candidate})
        return {name: evaluation for name, evaluation in evaluations.items() if name not in unreadable}

    for _ in range(MAX_ROUNDS):
        harmful, missing = _find_faults(evaluate_entries(entries), is_quantized)
        if not harmful and not missing:
            if entries == originals:
                return None
            return key, _prune_entries(
                entries, originals, lambda candidate: not any(_find_faults(evaluate_entries(candidate), is_quantized))
            )
        remaining = [entry for entry in entries if entry not in harmful]
        names = [name for names in missing.values() for name in names]
        remaining += [entry for entry in _write_entries(method, names, is_quantized) if entry not in remaining]
        if remaining == entries:
            break
        entries = remaining
    raise ValueError(f"no list was found that {' and '.join(evaluate_entries([]))} read as the tensors are stored")


def _evaluate(ckpt: Checkpoint, is_quantized: Mapping[str, bool], changes: Mapping[str, Any]) -> dict[str, Evaluation]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main_declaration is not None
    document = ckpt.quantization.main_declaration.document(**changes)
    packed = [name for name, quantized in is_quantized.items() if quantized]
    plain = [name for name, quantized in is_quantized.items() if not quantized]
    architecture = ckpt.config.architecture if ckpt.config is not None else None
    return {
        consumer: evaluate_consumer(
            consumer, architecture, is_quantized, document, ckpt.quantization.method, packed=packed, plain=plain
        )
        for consumer in evaluate_checkpoint(ckpt)
    }


def _find_faults(
    evaluations: Mapping[str, Evaluation], is_quantized: Mapping[str, bool]
) -> tuple[set[str], dict[str, set[str]]]:
    """Return the entries that ignore a quantized module, and the unquantized modules that no entry ignores.

    Each of these modules comes with every name that an entry might have to match: the checkpoint's and the consumer's.
    """
    harmful: set[str] = set()
    missing: dict[str, set[str]] = {}
    for evaluation in evaluations.values():
        # skip a consumer that does not know the method, so builds nothing quantized, and one whose class is unknown
        if evaluation.is_unknown or not any(decision.quantized for _, decision in evaluation.decisions.values()):
            continue
        for name, (module, decision) in evaluation.decisions.items():
            # write no entry on a guess
            if evaluation.is_guess and is_unusual_module(name):
                continue
            if is_quantized[name] and decision.quantized is False:
                if decision.entry is None:
                    raise ValueError(
                        f"{name} is stored quantized, and no list makes {evaluation.consumer.name} build it so"
                    )
                harmful.add(decision.entry)
            elif not is_quantized[name] and (decision.quantized or _is_split(decision)):
                missing.setdefault(name, set()).update((name, module.name))
    return harmful, missing


def _prune_entries(entries: list[str], originals: list[str], is_right: Callable[[list[str]], bool]) -> list[str]:
    """Remove new entries that the list does not need."""
    new = [entry for entry in entries if entry not in originals]
    for entry in reversed(new) if len(new) <= MAX_PRUNED else ():
        without = [other for other in entries if other != entry]
        if is_right(without):
            entries = without
    return entries


def _is_split(decision: Decision) -> bool:
    return decision.quantized is None and decision.error is not None


def _write_entries(method: str, names: Iterable[str], is_quantized: Mapping[str, bool]) -> list[str]:
    """Return entries for these names: an anchored regex for each kind of module if the method has regexes, else the names."""
    sorted_names = sort_modules(set(names))
    if method != "compressed-tensors":
        return sorted_names
    kinds: dict[str, list[str]] = {}
    for name in sorted_names:
        kinds.setdefault(to_template(name), []).append(name)
    entries = []
    for kind, modules in kinds.items():
        if "{}" not in kind:
            entries.append(kind)
            continue
        ending = re.sub(r"\\\{\\\}", r"\\d+", re.escape(".".join(kind.split("{}.", 1)[1].split("."))))
        pattern = rf".*\.{ending}$"
        if any(quantized and re.fullmatch(pattern[:-1], name) for name, quantized in is_quantized.items()):
            numbers = "|".join(sorted({name[len(kind.split("{}")[0]) :].split(".")[0] for name in modules}, key=int))
            head = re.escape(kind.split("{}")[0])
            pattern = rf"{head}({numbers})\.{ending}$"
        entries.append(f"re:{pattern}")
    return entries


def _is_valid_entry(entry: str) -> bool:
    if not entry.startswith("re:"):
        return True
    try:
        re.compile(entry[3:])
    except (re.error, OverflowError, RecursionError):
        return False
    return True
