"""Findings about single tensors, put together into sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ckptcheck.diagnosis.place import place_of
from ckptcheck.diagnosis.sides import Key, Sides
from ckptcheck.diagnosis.verdict import ORDER, Cause, Finding, Verdict
from ckptcheck.phrase import few, ranges

SEEN = {
    "exact": "every bit follows from it",
    "rounded": "every element follows from it, within the rounding of the dtype",
    "likely": "nothing can reproduce it; it only looks like this",
}
CHEAP = (
    "missing, zero, NaN, constant, {stale}another layer or expert, transposed, QKV interleave, gate and up swapped, "
    "tensor-parallel order, rope order, rows moved, offset, scale, dtype round trip, sign, byte order, partial write"
)
COSTLY = "scale by group, quantization round trip, rows permuted, two causes at once"


def summary(findings: list[Finding], sides: Sides) -> list[Verdict]:
    """One verdict for all findings with the same causes; best explained and most tensors first."""
    groups: dict[tuple[tuple[str, str], ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(tuple((cause.code, cause.group or cause.text) for cause in finding.causes), []).append(
            finding
        )
    verdicts = [_verdict(group, sides) for group in groups.values()]
    return sorted(verdicts, key=lambda verdict: (verdict.confidence == "unknown", -len(verdict.tensors)))


def _verdict(findings: list[Finding], sides: Sides) -> Verdict:
    first = findings[0]
    what = [_what([finding.causes[number] for finding in findings], findings) for number in range(len(first.causes))]
    names = tuple(dict.fromkeys(_named(name, finding.key) for finding in findings for name in finding.key.names))
    confidence = max((finding.confidence for finding in findings), key=ORDER.index)
    if confidence == "unknown":
        examples = "; ".join(
            f"{_named(item.key.names[0], item.key)}: {item.evidence}" for item in findings[:3] if item.evidence
        )
        evidence = f"{examples}; {_ruled_out(findings, sides)}"
    else:
        evidence = SEEN[confidence]
    codes = tuple(cause.code for cause in first.causes)
    return Verdict(codes, f"{_who(findings, sides)}: {', and '.join(what)}", names, confidence, evidence)


def _ruled_out(findings: list[Finding], sides: Sides) -> str:
    """Say what was tried in vain, and on how many that takes long."""
    cheap = CHEAP.format(stale="stale, " if sides.previous else "")
    hasty = sum(finding.hasty for finding in findings)
    few_only = f" (on {len(findings) - hasty} of the {len(findings):,})" if hasty else ""
    return f"ruled out: {cheap}; {COSTLY}{few_only}"


def _named(name: str, key: Key) -> str:
    return name if key.expert is None else f"{name}[{key.expert}]"


def _what(causes: list[Cause], findings: list[Finding]) -> str:
    code = causes[0].code
    keys = [finding.key for finding in findings]
    if code == "layer":
        moved = {key.place.layer or 0: cause.layer or 0 for key, cause in zip(keys, causes, strict=True)}
        return _moved("layer", "pipeline", moved)
    if code == "expert":
        pairs = {(key.number or 0, cause.expert or 0) for key, cause in zip(keys, causes, strict=True)}
        if len(dict(pairs)) < len(pairs):
            return "each is another expert of its layer, in each layer in another way"
        return _moved("expert", "expert", dict(pairs))
    texts = list(dict.fromkeys(cause.text for cause in causes))
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (so in {_named(keys[0].names[0], keys[0])}; it varies)"


def _moved(noun: str, parallel: str, moved: Mapping[int, int]) -> str:
    """Say which layers or experts stand where others belong."""
    to, source = ranges(moved), ranges(moved.values())
    here, there = (noun if len(set(numbers)) == 1 else f"{noun}s" for numbers in (moved.keys(), moved.values()))
    offsets = {target - origin for target, origin in moved.items()}
    equal = f"{here} {to} {'equals' if len(moved) == 1 else 'equal'} {there} {source}"
    if len(offsets) == 1:
        return f"{equal}: {parallel} offset {offsets.pop()}"
    if len(set(moved.values())) == 1:
        return equal.replace(" equal ", " all equal ")
    listed = [f"{target} is {origin}" for target, origin in sorted(moved.items())]
    pairs = ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    if set(moved) == set(moved.values()):
        return f"{noun}s are permuted: {pairs}"
    return f"{noun}s are others: {pairs}"


def _who(findings: list[Finding], sides: Sides) -> str:
    """Say which tensors, of how many of their kind, and in which layers if not in all."""
    keys = list(dict.fromkeys(finding.key for finding in findings))
    if len(keys) == 1:
        return _named(_shown(keys[0], sides, whole=True), keys[0]) + _members(findings)
    numbers = Counter(key.label for key in keys)
    totals = {key.label: sides.totals[key.place.label] * _stacked(key, sides) for key in keys}
    shown = {key.label: _shown(key, sides) for key in keys}
    if len(numbers) <= 3:
        text = ", ".join(f"{number} of {totals[label]} {shown[label]}" for label, number in numbers.items())
    else:
        kinds = few([shown[label] for label in numbers])
        text = f"{sum(numbers.values()):,} of {sum(totals[label] for label in numbers):,} tensors ({kinds})"
    layers = {key.place.layer for key in keys if key.place.layer is not None}
    every = {layer for key in keys for layer in sides.layers.get(key.place.stem, ())}
    inside = f", layers {ranges(layers)}" if len(layers) > 1 else f", layer {ranges(layers)}" if layers else ""
    return text + _members(findings) + (inside if layers != every else "")


def _members(findings: list[Finding]) -> str:
    members = dict.fromkeys(finding.member for finding in findings if finding.member)
    everything = set(members) in ({"gate", "up"}, {"q", "k", "v"})
    return f" (its {' and '.join(members)})" if members and not everything else ""


def _shown(key: Key, sides: Sides, *, whole: bool = False) -> str:
    """What to call it: by the name on the other side too, where that is known."""
    label = key.label if not whole or len(key.names) > 1 else key.names[0]
    if whole and len(key.names) > 1 and key.place.layer is not None:
        label = key.place.name.partition(f".{key.place.layer}.")[0] + f".{key.place.layer}.{key.label}"
    called = {sides.called[name] for name in key.names if name in sides.called}
    if len(called) != 1:
        return label
    other = place_of(called.pop())
    return f"{other.name if whole else _short(other.label)} ({label})"


def _short(label: str) -> str:
    """The last word of a Megatron name that says something: ``linear_fc1`` of ``mlp.linear_fc1.weight``."""
    words = [word for word in label.split(".") if word not in ("weight", "{}")]
    return words[-1] if words else label


def _stacked(key: Key, sides: Sides) -> int:
    if key.expert is None:
        return 1
    stacked = sides.read("expected", key.names[0])
    return stacked.shape[0] if stacked is not None and stacked.shape else 1
