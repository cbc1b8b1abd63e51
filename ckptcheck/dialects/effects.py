"""What becomes of a module that a consumer builds otherwise than it is stored.

Sources: vLLM 0.32 `AutoWeightsLoader` and the models' `load_weights` raise on a name they have no parameter for; in SGLang 0.5.23
that is for each model to decide, and some raise for the parts of fused modules only, or for experts (asked by
`fixtures/learn_modules_sglang.py`); most drop it, with a warning (Llama) or silently (Qwen3-MoE); transformers 5.23 reports it,
and starts what is missing at random. A weight under the same name is copied into whatever dtype the parameter has. What vLLM and
SGLang do is shown on real ones by the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.dialects.views import Clash, in_order, template

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

_OTHER_NAME = {
    "sglang": "drops {tensor} and computes with memory that nothing filled",
    "transformers": "starts the weight at random and says so in its report only",
    "compressed-tensors": "finds no {tensor}",
}
_STOPS = "stops at {tensor}"
_EITHER = "has no place for {tensor}, and stops or computes with memory that nothing filled"
"""What SGLang does with models whose loader raises, and with one that nobody has loaded."""
_SAME_NAME = {
    True: "casts the numbers as they are and leaves the scale out",
    False: "casts the weight to the quantized dtype, with a scale that nothing filled",
}


def effect(clash: Clash, stored: str, built: str, scale: str | None = None) -> str:
    """Say what the consumer does. stored, built: name of the weight here and there (``weight``, ``weight_packed``, ``qweight``).

    scale: name of a tensor beside the weight, None where there is none.
    """
    stops = clash.consumer == "vllm" or clash.built.stops
    if stored == built and stops and clash.stored and scale is not None:
        stored = scale  # the weight finds its place, and the scale none
    elif stored == built and clash.consumer in ("vllm", "sglang", "transformers"):
        return _SAME_NAME[clash.stored]
    says = _STOPS if stops else _OTHER_NAME[clash.consumer]
    if clash.consumer == "sglang" and clash.built.guessed:
        says = _EITHER
    return says.format(tensor=f"{clash.module}.{stored}")


@dataclass(frozen=True)
class Described:
    """One fact in words. modules, are, because, effects: parts of a sentence. file, key: where the list stands, or the config."""

    modules: str
    are: str
    because: str
    effects: str
    file: str
    key: str
    hint: str


def described(ckpt: Checkpoint, clashes: Iterable[Clash]) -> Iterator[Described]:
    """Tell clashes that are one fact as one: the same kind of module and the same consumers, for the same reason."""
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    by_module: dict[str, list[Clash]] = {}
    for clash in clashes:
        by_module.setdefault(clash.module, []).append(clash)
    groups: dict[tuple[object, ...], list[str]] = {}
    for module, seen in by_module.items():
        entries = tuple((clash.consumer, clash.verdict.entry) for clash in seen)
        # one entry may take modules of many kinds
        alike = "" if any(entry for _, entry in entries) else template(module)
        groups.setdefault((alike, *entries), []).append(module)
    built = _weight_of(ckpt)
    for modules in groups.values():
        listed = in_order(modules)
        first = by_module[listed[0]]
        stored = ckpt.quantization.layers.get(listed[0])
        role = stored.weight.role if stored is not None and stored.weight is not None else "weight"
        other = "weight" if first[0].stored else built
        beside = sorted(stored.companions, key=lambda name: "scale" not in name) if stored is not None else []
        worst = [
            next((each for each in one if each.built.stops), one[0])
            for one in zip(*(by_module[name] for name in listed), strict=True)
        ]
        entry = next((clash.verdict.entry for clash in first if clash.verdict.entry is not None), None)
        place = next((place for place in ckpt.quantization.ignore if place.text == entry), None)
        schemes = ckpt.quantization.schemes  # one without weights is a pattern of GPTQ's `dynamic`
        key = next((scheme.key for scheme in schemes if scheme.weights is None and scheme.targets == (entry,)), None)
        yield Described(
            modules=listed[0] + (f" and {len(listed) - 1:,} more" if len(listed) > 1 else ""),
            are="are" if len(listed) > 1 else "is",
            because=_because(first[0].stored, entry),
            effects="; ".join(f"{clash.who} {effect(clash, role, other, next(iter(beside), None))}" for clash in worst),
            file=place.file if place else ckpt.quantization.main.file,
            key=place.key if place else key or ckpt.quantization.main.key,
            hint=_hint(first[0], entry),
        )


def _because(stored: bool, entry: str | None) -> str:
    """Say which entry of which list makes a consumer build it otherwise, or that there is none."""
    if stored:
        return f"ignored by {entry!r}" if entry is not None else "not targeted"
    return f"targeted by {entry!r} and not ignored" if entry is not None else "not ignored"


def _hint(clash: Clash, entry: str | None) -> str:
    name = clash.module.rpartition(".")[2]
    if not clash.stored:
        return "add it to the ignore list; ckptcheck scan --fix writes one that all these consumers read alike"
    if entry is not None and entry.startswith("re:"):
        end = re.split(r"[.\\]", entry)[-1]
        if end.isidentifier() and name.startswith(end) and name != end:
            return f"the regex has no end; {entry}$ would leave {name} alone"
    if entry is not None:
        return "take the entry out of the list, or quantize again without this module"
    return "add a target for it, or quantize again without this module"


def _weight_of(ckpt: Checkpoint) -> str:
    """Return the name of the weight in the modules that are stored quantized."""
    assert ckpt.quantization is not None
    ways = (way.weight.role for way in ckpt.quantization.stored if way.is_quantized and way.weight is not None)
    return next(ways, "weight")
