"""Finds modules that one side of a sync packs and the other keeps plain, by tensor names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ckptcheck.consumers.engine_tensors import EXPERTS_TENSOR, list_engine_modules
from ckptcheck.live.runtime.engines.base import TensorDigests

PACKED = (".weight_packed", ".qweight", ".weight_scale", ".weight_scale_inv", ".scales")
"""Suffixes of names that only a packed module has."""
PLAIN = ".weight"


def packing_mismatches(sent: Iterable[str], manifest: TensorDigests) -> tuple[list[str], list[str]]:
    """Return the modules that are sent packed and built plain, and those that are sent plain and built packed.

    sent: names of the tensors that the trainer sends. manifest: of the engine. Modules that the engine lacks under any usual
    name are left out.
    """
    packed, plain = _modules(sent)
    built_packed, built_plain = _modules(
        _as_module_name(name) for (_, name), entry in manifest.items() if entry.kind == "parameter"
    )
    built_plain -= built_packed
    only_sent = sorted(
        module
        for module in packed
        if list_engine_modules(module) & built_plain and not list_engine_modules(module) & built_packed
    )
    only_built = sorted(module for module in plain - packed if list_engine_modules(module) & built_packed)
    return only_sent, only_built


def suggest_ignore_entry(ignore: str, modules: Sequence[str]) -> tuple[str, str] | None:
    """Return the ignore entry that matches modules but not their parameters, and a replacement that matches both.

    ignore: the list as JSON. Returns None if no entry explains the mismatch.
    """
    for entry in json.loads(ignore or "[]"):
        if not isinstance(entry, str) or not entry.startswith("re:") or not entry.endswith("$"):
            continue
        try:
            pattern = re.compile(entry[3:])
        except (re.error, OverflowError, RecursionError):
            continue
        if all(pattern.match(module) and not pattern.match(f"{module}.weight") for module in modules):
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


def _as_module_name(name: str) -> str:
    """Return the name of a fused-experts tensor in module form: ``experts.w13_weight_scale`` → ``experts.w13.weight_scale``."""
    match = EXPERTS_TENSOR.fullmatch(name)
    return f"{match[1]}.w{match[2]}.{match[3]}" if match else name
