"""Which modules one side of a sync packs and the other does not, by the names of what is sent and of what the engine holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ckptcheck.dialects.made import HELD, places
from ckptcheck.engines.base import Manifest

PACKED = (".weight_packed", ".qweight", ".weight_scale", ".weight_scale_inv", ".scales")
"""Ends of names that only a packed module has."""
PLAIN = ".weight"


def disagreements(sent: Iterable[str], held: Manifest) -> tuple[list[str], list[str]]:
    """Return the modules that are sent packed and held plain, and those that are sent plain and held packed.

    sent: names of tensors as they are sent. Modules that the engine has no place for, under any usual name, are left out.
    """
    packed, plain = _modules(sent)
    built_packed, built_plain = _modules(_spelt(name) for (_, name), entry in held.items() if entry.kind == "parameter")
    built_plain -= built_packed
    only_sent = sorted(
        module for module in packed if places(module) & built_plain and not places(module) & built_packed
    )
    only_built = sorted(module for module in plain - packed if places(module) & built_packed)
    return only_sent, only_built


def entry_for_both(ignore: str, modules: Sequence[str]) -> tuple[str, str] | None:
    """Return an entry of an ignore list that matches modules and not their parameters, and one that matches both.

    ignore: the list as JSON. None where no entry is to blame.
    """
    for entry in json.loads(ignore or "[]"):
        if not isinstance(entry, str) or not entry.startswith("re:") or not entry.endswith("$"):
            continue
        try:
            found = re.compile(entry[3:])
        except (re.error, OverflowError, RecursionError):
            continue
        if all(found.match(module) and not found.match(f"{module}.weight") for module in modules):
            return entry, f"{entry[:-1]}(\\.weight)?$"
    return None


def _modules(names: Iterable[str]) -> tuple[set[str], set[str]]:
    packed, plain = set(), set()
    for name in names:
        for end in PACKED:
            if name.endswith(end):
                packed.add(name.removesuffix(end))
        if name.endswith(PLAIN):
            plain.add(name.removesuffix(PLAIN))
    return packed, plain


def _spelt(name: str) -> str:
    """Spell a tensor of fused experts as one of a module: ``experts.w13_weight_scale`` is ``experts.w13.weight_scale``."""
    match = HELD.fullmatch(name)
    return f"{match[1]}.w{match[2]}.{match[3]}" if match else name
