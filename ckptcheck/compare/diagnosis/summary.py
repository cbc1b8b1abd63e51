"""Combines the explanations of single tensors into sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ckptcheck.compare.diagnosis.inputs import DiagnosisInput, TensorKey
from ckptcheck.compare.diagnosis.tensor_name import parse_tensor_name
from ckptcheck.compare.diagnosis.verdict import ORDER, Cause, Confidence, Explanation, Verdict
from ckptcheck.text.formatting import format_ranges, join_truncated

EVIDENCE_TEXT = {
    "exact": "undoing this gives the values of the other side, bit for bit",
    "rounded": "undoing this gives the values of the other side, up to the rounding of the dtype",
    "likely": "the values look like this, but it cannot be undone, so it is not proved",
}
CAUSE_TEXT = {
    "bit-flip": "either side may hold the damaged bit: compare both with what they were made from",
    "last-place": "expected where both sides were trained or computed apart; where one is a copy of the other, a bit is damaged",
    "lost-there": "the other side lost its values, or was not trained yet (a bias or a norm starts so): this one may be right",
}
LOST = "this side lost values, which nothing in it restores: repeat the step that made it, or take them from the other side"
LOSING = {
    *("zero", "nan", "constant", "partial-write", "stale", "missing", "round-trip", "quantized"),
    *("tp-duplicated", "tp-shard", "rows-missing", "rows-shifted"),
}
"""Causes after which the expected values cannot be had from the actual ones."""
CHEAP_CAUSES = (
    "missing, zero, NaN, constant, {stale}another layer or expert, transposed, QKV interleave, gate and up swapped, "
    "tensor-parallel order, rope order, rows moved, offset, scale, dtype round trip, sign, byte order, partial write"
)
UNRELATED, LEAST_UNRELATED = 0.1, 3
"""Largest cosine of unrelated weights in the median tensor (near 0 for random matrices, not for norms), and the fewest tensors that
show it."""
SLOW_CAUSES = "scale by group, quantization round trip, rows permuted, two causes at once"


def summarize(findings: list[Explanation], sides: DiagnosisInput) -> list[Verdict]:
    """Return one verdict for all explanations with the same causes; known causes first, those of most tensors before others."""
    groups: dict[tuple[tuple[str, str], ...], list[Explanation]] = {}
    for finding in findings:
        groups.setdefault(tuple((cause.code, cause.group or cause.text) for cause in finding.causes), []).append(
            finding
        )
    verdicts = [_verdict(group, sides) for group in groups.values()]
    return sorted(verdicts, key=lambda verdict: (verdict.confidence == "unknown", -len(verdict.tensors)))


def _verdict(findings: list[Explanation], sides: DiagnosisInput) -> Verdict:
    first = findings[0]
    what = [
        _describe_cause([finding.causes[number] for finding in findings], findings)
        for number in range(len(first.causes))
    ]
    names = tuple(dict.fromkeys(_display_name(name, finding.key) for finding in findings for name in finding.key.names))
    confidence = max((finding.confidence for finding in findings), key=ORDER.index)
    cosines = sorted(abs(item.cosine) for item in findings if item.cosine is not None)
    if confidence == "unknown" and len(cosines) >= LEAST_UNRELATED and cosines[len(cosines) // 2] < UNRELATED:
        evidence = f"the values are unrelated (cosine {cosines[len(cosines) // 2]:.2g} in the median tensor), as those of another "
        evidence += "model or of a new start are: check which checkpoint this one was made from"
    elif confidence == "unknown":
        examples = "; ".join(
            f"{_display_name(item.key.names[0], item.key)}: {item.evidence}" for item in findings[:3] if item.evidence
        )
        evidence = f"{examples}; {_ruled_out(findings, sides)}"
    else:
        evidence = _advise(first.causes, confidence, {key for finding in findings for key in _moved(finding)})
    codes = tuple(cause.code for cause in first.causes)
    return Verdict(codes, f"{_describe_tensors(findings, sides)}: {', and '.join(what)}", names, confidence, evidence)


def _moved(finding: Explanation) -> list[tuple[str, int, int]]:
    """Return noun, number and source of a tensor that is another layer's or expert's."""
    name = finding.key.parsed_name
    return [
        (cause.code, (name.layer if cause.layer is not None else finding.key.expert_index) or 0, source)
        for cause in finding.causes
        if (source := cause.layer if cause.layer is not None else cause.expert) is not None
    ]


def _advise(causes: tuple[Cause, ...], confidence: Confidence, moved: set[tuple[str, int, int]]) -> str:
    """Say how the cause was confirmed where it can be undone, and what to do where it cannot."""
    codes = {cause.code for cause in causes}
    if text := next((CAUSE_TEXT[code] for code in codes if code in CAUSE_TEXT), ""):
        return text
    # numbers that only exchange their tensors lose none of them
    is_permuted = {(code, to) for code, to, _ in moved} == {(code, source) for code, _, source in moved}
    return LOST if confidence != "likely" and (codes & LOSING or not is_permuted) else EVIDENCE_TEXT[confidence]


def _ruled_out(findings: list[Explanation], sides: DiagnosisInput) -> str:
    """List the causes that were ruled out, and on how many tensors the slow ones were tried."""
    cheap = CHEAP_CAUSES.format(stale="stale, " if sides.previous else "")
    cheap_only_count = sum(finding.cheap_only for finding in findings)
    few_only = f" (on {len(findings) - cheap_only_count} of the {len(findings):,})" if cheap_only_count else ""
    return f"ruled out: {cheap}; {SLOW_CAUSES}{few_only}"


def _display_name(name: str, key: TensorKey) -> str:
    return name if key.expert is None else f"{name}[{key.expert}]"


def _describe_cause(causes: list[Cause], findings: list[Explanation]) -> str:
    code = causes[0].code
    keys = [finding.key for finding in findings]
    if code == "layer":
        sources = {key.parsed_name.layer or 0: cause.layer or 0 for key, cause in zip(keys, causes, strict=True)}
        return _describe_moves("layer", "pipeline", sources)
    if code == "expert":
        pairs = {(key.expert_index or 0, cause.expert or 0) for key, cause in zip(keys, causes, strict=True)}
        if len(dict(pairs)) < len(pairs):
            return "each is another expert of its layer, and the order differs between layers"
        return _describe_moves("expert", "expert", dict(pairs))
    texts = list(dict.fromkeys(cause.text for cause in causes))
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (so in {_display_name(keys[0].names[0], keys[0])}; it varies)"


def _describe_moves(noun: str, parallel: str, sources: Mapping[int, int]) -> str:
    """Describe which layers or experts hold tensors of other ones."""
    to, source = format_ranges(sources), format_ranges(sources.values())
    here, there = (noun if len(set(numbers)) == 1 else f"{noun}s" for numbers in (sources.keys(), sources.values()))
    offsets = {target - origin for target, origin in sources.items()}
    equal = f"{here} {to} {'equals' if len(sources) == 1 else 'equal'} {there} {source}"
    if len(offsets) == 1:
        return f"{equal}: {parallel} offset {offsets.pop()}"
    if len(set(sources.values())) == 1:
        return equal.replace(" equal ", " all equal ")
    listed = [f"{target} is {origin}" for target, origin in sorted(sources.items())]
    pairs = ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    if set(sources) == set(sources.values()):
        return f"{noun}s are permuted: {pairs}"
    return f"{noun}s hold the values of others: {pairs}"


def _describe_tensors(findings: list[Explanation], sides: DiagnosisInput) -> str:
    """Name the tensors, how many of their kind they are, and their layers if these are not all."""
    keys = list(dict.fromkeys(finding.key for finding in findings))
    if len(keys) == 1:
        return _display_name(_display_label(keys[0], sides, whole=True), keys[0]) + _members(findings)
    numbers = Counter(key.label for key in keys)
    totals = {key.label: sides.label_counts[key.parsed_name.label] * _count_stacked(key, sides) for key in keys}
    labels = {key.label: _display_label(key, sides) for key in keys}
    if len(numbers) <= 3:
        text = ", ".join(f"{number} of {totals[label]} {labels[label]}" for label, number in numbers.items())
    else:
        kinds = join_truncated([labels[label] for label in numbers])
        text = f"{sum(numbers.values()):,} of {sum(totals[label] for label in numbers):,} tensors ({kinds})"
    layers = {key.parsed_name.layer for key in keys if key.parsed_name.layer is not None}
    every = {layer for key in keys for layer in sides.layers_by_stem.get(key.parsed_name.stem, ())}
    inside = (
        f", layers {format_ranges(layers)}" if len(layers) > 1 else f", layer {format_ranges(layers)}" if layers else ""
    )
    experts = {key.expert_index for key in keys if key.expert_index is not None}
    all_experts = {
        number
        for key in keys
        for number in sides.experts_by_stem.get((key.parsed_name.stem, key.parsed_name.layer), ())
    }
    which = f", expert{'s' if len(experts) > 1 else ''} {format_ranges(experts)}" if experts < all_experts else ""
    return text + _members(findings) + (inside if layers != every else "") + which


def _members(findings: list[Explanation]) -> str:
    members = dict.fromkeys(finding.member for finding in findings if finding.member)
    everything = set(members) in ({"gate", "up"}, {"q", "k", "v"})
    return f" (its {' and '.join(members)})" if members and not everything else ""


def _display_label(key: TensorKey, sides: DiagnosisInput, *, whole: bool = False) -> str:
    """Return how to name a key; also by its name on the other side, where that is known."""
    label = key.label if not whole or len(key.names) > 1 else key.names[0]
    if whole and len(key.names) > 1 and key.parsed_name.layer is not None:
        label = (
            key.parsed_name.name.partition(f".{key.parsed_name.layer}.")[0] + f".{key.parsed_name.layer}.{key.label}"
        )
        if key.expert is None and key.parsed_name.expert is not None:
            label = label.replace("{}", str(key.parsed_name.expert), 1)
    other_names = {sides.other_names[name] for name in key.names if name in sides.other_names}
    if len(other_names) != 1:
        return label
    other = parse_tensor_name(other_names.pop())
    return f"{other.name if whole else _short(other.label)} ({label})"


def _short(label: str) -> str:
    """Return the last telling word of a Megatron name: ``linear_fc1`` of ``mlp.linear_fc1.weight``."""
    words = [word for word in label.split(".") if word not in ("weight", "{}")]
    return words[-1] if words else label


def _count_stacked(key: TensorKey, sides: DiagnosisInput) -> int:
    if key.expert is None:
        return 1
    stacked = sides.read("expected", key.names[0])
    return stacked.shape[0] if stacked is not None and stacked.shape else 1
