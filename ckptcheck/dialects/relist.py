"""Writes the list of modules that are left alone anew, so that every chosen consumer reads it as the tensors are stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.dialects.base import Verdict
from ckptcheck.dialects.judgement import Judgement, judge_all
from ckptcheck.dialects.views import dead, in_order, is_odd, stored, template, views

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

KEYS = {
    "compressed-tensors": ("ignore",),
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "modelopt": ("ignore", "exclude_modules"),
    "awq": ("modules_to_not_convert",),
}
"""Method → the keys of its list; where there is none, the last one is written, for ModelOpt in config.json the first."""
ROUNDS = 6
PRUNED = 32
"""New entries up to which it is tried to do without each."""


def relisted(ckpt: Checkpoint) -> tuple[str, list[str]] | None:
    """Return the key of the list and its corrected entries; None where the list is right as it is.

    Entries that do no harm stay; new ones are anchored. Raises ValueError, saying why, where no list is found that all
    consumers read as the tensors are stored.
    """
    quantization = ckpt.quantization
    if quantization is None or quantization.main is None or not views(ckpt):
        return None
    method, config = quantization.main.method or "", quantization.config
    if method not in KEYS:
        raise ValueError(f"{method} has no list of modules to write")
    held = stored(ckpt)
    usual = KEYS[method][0 if method == "modelopt" and quantization.main.file == "config.json" else -1]
    key = next((key for key in KEYS[method] if isinstance(config.get(key), list)), usual)
    written = [entry for entry in config.get(key, []) if isinstance(entry, str)]
    slips = {entry.text for entry in dead(ckpt) if entry.meant is not None}
    entries = [entry for entry in dict.fromkeys(written) if entry not in slips and _valid(entry)]
    hopeless = {
        name: view.error or view.reason
        for name, view in _judged(ckpt, held, {**config, key: []}).items()
        if not view.verdicts
    }
    if len(hopeless) == len(views(ckpt)):
        raise ValueError("; ".join(f"{name}: {why}" for name, why in hopeless.items()))

    def judge(some: list[str]) -> dict[str, Judgement]:
        judged = _judged(ckpt, held, {**config, key: some})
        return {name: view for name, view in judged.items() if name not in hopeless}

    for _ in range(ROUNDS):
        harmful, missing = _wrong(judge(entries), held)
        if not harmful and not missing:
            if entries == written:
                return None
            return key, _pruned(entries, written, lambda some: not any(_wrong(judge(some), held)))
        kept = [entry for entry in entries if entry not in harmful]
        names = [name for names in missing.values() for name in names]
        kept += [entry for entry in _entries(method, names, held) if entry not in kept]
        if kept == entries:
            break
        entries = kept
    raise ValueError(f"no list was found that {' and '.join(judge([]))} read as the tensors are stored")


def _judged(ckpt: Checkpoint, held: Mapping[str, bool], config: Mapping[str, Any]) -> dict[str, Judgement]:
    assert ckpt.quantization is not None
    packed = [name for name, quantized in held.items() if quantized]
    plain = [name for name, quantized in held.items() if not quantized]
    architecture = ckpt.config.architecture if ckpt.config is not None else None
    return {
        consumer: judge_all(consumer, architecture, held, config, ckpt.quantization.method, packed=packed, plain=plain)
        for consumer in views(ckpt)
    }


def _wrong(judged: Mapping[str, Judgement], held: Mapping[str, bool]) -> tuple[set[str], dict[str, set[str]]]:
    """Return the entries that leave a quantized module alone, and the unquantized modules that are not left alone.

    The latter with every name that an entry might have to match: the checkpoint's, the consumer's, that of a part.
    """
    harmful: set[str] = set()
    missing: dict[str, set[str]] = {}
    for view in judged.values():
        if not any(verdict.quantized for _, verdict in view.verdicts.values()):
            continue  # it does not know the method
        for name, (module, verdict) in view.verdicts.items():
            if view.guessed and is_odd(name):
                continue  # nothing is written on a guess
            if held[name] and verdict.quantized is False:
                if verdict.entry is None:
                    raise ValueError(f"{name} is stored quantized, and no list makes {view.consumer} build it so")
                harmful.add(verdict.entry)
            elif not held[name] and (verdict.quantized or _split(verdict)):
                missing.setdefault(name, set()).update((name, module.name))
    return harmful, missing


def _pruned(entries: list[str], written: list[str], right: Callable[[list[str]], bool]) -> list[str]:
    """Leave out new entries that others make needless."""
    new = [entry for entry in entries if entry not in written]
    for entry in reversed(new) if len(new) <= PRUNED else ():
        without = [other for other in entries if other != entry]
        if right(without):
            entries = without
    return entries


def _split(verdict: Verdict) -> bool:
    return verdict.quantized is None and verdict.error is not None


def _entries(method: str, names: Iterable[str], held: Mapping[str, bool]) -> list[str]:
    """Write entries for names: anchored regexes for a kind of module where the method has them, else the names."""
    wanted = in_order(set(names))
    if method != "compressed-tensors":
        return wanted
    kinds: dict[str, list[str]] = {}
    for name in wanted:
        kinds.setdefault(template(name), []).append(name)
    found = []
    for kind, modules in kinds.items():
        if "{}" not in kind:
            found.append(kind)
            continue
        ending = re.sub(r"\\\{\\\}", r"\\d+", re.escape(".".join(kind.split("{}.", 1)[1].split("."))))
        pattern = rf".*\.{ending}$"
        if any(quantized and re.fullmatch(pattern[:-1], name) for name, quantized in held.items()):
            numbers = "|".join(sorted({name[len(kind.split("{}")[0]) :].split(".")[0] for name in modules}, key=int))
            head = re.escape(kind.split("{}")[0])
            pattern = rf"{head}({numbers})\.{ending}$"
        found.append(f"re:{pattern}")
    return found


def _valid(entry: str) -> bool:
    if not entry.startswith("re:"):
        return True
    try:
        re.compile(entry[3:])
    except (re.error, OverflowError, RecursionError):
        return False
    return True
