"""compressed-tensors 0.20.0 itself, which transformers calls: which modules it quantizes.

Source: compressed_tensors/utils/match.py and quantization/lifecycle/apply.py. Names are those of transformers' modules.
A class name counts with its parents, so a router that is no ``nn.Linear`` is not quantized by ``Linear``.
"""

from __future__ import annotations

from typing import Any

from ckptcheck.dialects.base import EMBEDDING, LINEAR, Module, Question, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, equal_or_regex
from ckptcheck.dialects.groups import check_order
from ckptcheck.dialects.reading import Reader

NAME, VERSION = "compressed-tensors", "0.20.0"
PLAIN = Verdict(quantized=False)


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where the library raises on it, Unknown for another method."""
    if question.method != "compressed-tensors":
        raise Unknown(f"compressed-tensors does not know the method {question.method}")
    listed = _targets(question.config)
    given = [] if question.config.get("ignore") is None else question.config["ignore"]
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise Refused("ignore is not a list of strings")
    ignore = Entries(given, equal_or_regex)
    target = Entries(listed, equal_or_regex)
    order = sorted(range(len(listed)), key=lambda number: ("re:" in listed[number], listed[number]))

    def judge(module: Module) -> Verdict:
        classes = {module.kind, "Module"} | {{LINEAR: "Linear", EMBEDDING: "Embedding"}.get(module.role, "Module")}
        named = target.hits(module.name)
        meant = sorted({*named, *(n for n, text in enumerate(listed) if text in classes)})
        # targets are tried in their order, up to the first that matches by name or class
        target.until(meant[0] if meant else None)
        if not meant:
            return PLAIN
        ignoring = ignore.hits(module.name)
        ignoring = sorted({*ignoring, *(n for n, text in enumerate(ignore.texts) if text in classes)})
        ignore.until(ignoring[0] if ignoring else None)
        if ignoring:
            return Verdict(quantized=False, entry=ignore.written[ignoring[0]])
        target.until(None)  # the scheme is chosen among all of them
        if module.role not in (LINEAR, EMBEDDING):
            return PLAIN
        chosen = next(n for n in [*(n for n in order if n in named), *(n for n in order if n in meant)])
        return Verdict(quantized=True, scheme=listed[chosen], entry=listed[chosen])

    return Reader(judge, {"ignore": ignore, "targets": target})


def _targets(config: Any) -> list[str]:
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        raise Refused("config_groups is not an object")
    found: list[str] = []
    for name, group in groups.items():
        listed = group.get("targets") if isinstance(group, dict) else group
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise Refused(f"config_groups.{name} has no list of targets")
        if isinstance(group, dict):
            check_order(name, group)
        found += [text for text in listed if text not in found]
    return found
