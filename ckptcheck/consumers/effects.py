"""Describes what a consumer does with a module that it builds quantized and the checkpoint stores unquantized, or the reverse.

Each `Consumer` holds the facts. vLLM 0.32's `AutoWeightsLoader` and the models' `load_weights` raise on a tensor without a
parameter. In SGLang 0.5.23 each model decides: some raise for the shards of fused modules only, or for experts (recorded by
`fixtures/learn_modules_sglang.py`); most drop the tensor, with a warning (Llama) or silently (Qwen3-MoE). transformers 5.23
reports it and initialises missing parameters at random. All copy a weight into the parameter of the same name, whatever its
dtype. Tests on real engines show what vLLM and SGLang do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckptcheck.consumers.base import EXPERTS, OTHER
from ckptcheck.consumers.mismatches import (
    Mismatch,
    evaluate_checkpoint,
    map_stored_modules,
    matches_stored_name,
    sort_modules,
    to_template,
)
from ckptcheck.linter.rule import Problem

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

_SAME_NAME = {
    True: "casts the raw numbers and drops the scale",
    False: "casts the weight to the quantized dtype and multiplies by an uninitialised scale",
}
"""Whether the weight is stored quantized → the effect of copying it into the parameter of the same name."""


def describe_effect(mismatch: Mismatch, stored_name: str, built_name: str, scale: str | None = None) -> str:
    """Return what the consumer does with a module, as the predicate of a sentence.

    Args:
        mismatch: the module.
        stored_name: name of its weight in the checkpoint (``weight``, ``weight_packed``, ``qweight``).
        built_name: name of the weight in the module that the consumer builds.
        scale: name of a tensor stored beside the weight, None where there is none.
    """
    consumer, module = mismatch.consumer, mismatch.target_module
    if stored_name == built_name and mismatch.is_stored_quantized and scale is not None and consumer.stops_at(module):
        # the consumer has a parameter for the weight, but none for the scale
        stored_name = scale
    elif stored_name == built_name and consumer.casts_same_name:
        return _SAME_NAME[mismatch.is_stored_quantized]
    return consumer.describe_missing_parameter(module, f"{mismatch.module}.{stored_name}")


def describe_mismatches(ckpt: Checkpoint, mismatches: Iterable[Mismatch]) -> Iterator[Problem]:
    """Yield one problem for mismatches of one cause: the same kind of module and the same consumers, for the same reason."""
    assert ckpt.quantization is not None
    assert ckpt.quantization.main_declaration is not None
    by_module: dict[str, list[Mismatch]] = {}
    for mismatch in mismatches:
        by_module.setdefault(mismatch.module, []).append(mismatch)
    groups: dict[tuple[object, ...], list[str]] = {}
    for module, of_module in by_module.items():
        entries = {entry for mismatch in of_module if (entry := mismatch.decision.entry) is not None}
        is_never = not entries and any(map(_is_never_quantized, of_module))
        # one entry may match modules of many kinds, and a consumer may leave out a whole part
        kind = "" if entries or is_never else to_template(module)
        groups.setdefault((kind, is_never, *sorted(entries)), []).append(module)
    quantized_name = _quantized_weight_name(ckpt)
    for group in groups.values():
        modules = sort_modules(group)
        of_consumers: dict[str, list[Mismatch]] = {}
        for mismatch in (mismatch for name in modules for mismatch in by_module[name]):
            of_consumers.setdefault(mismatch.consumer.name, []).append(mismatch)
        first = [alike[0] for alike in of_consumers.values()]
        storage = ckpt.quantization.storage_by_module.get(modules[0])
        stored_name = storage.weight.role if storage is not None and storage.weight is not None else "weight"
        built_name = "weight" if first[0].is_stored_quantized else quantized_name
        companions = sorted(storage.companions, key=lambda name: "scale" not in name) if storage is not None else []
        scale = next(iter(companions), None)
        worst = [
            next((mismatch for mismatch in alike if mismatch.target_module.rejects_unknown_tensors), alike[0])
            for alike in of_consumers.values()
        ]
        entry = next((mismatch.decision.entry for mismatch in first if mismatch.decision.entry is not None), None)
        place = next((place for place in ckpt.quantization.ignore if place.text == entry), None)
        # a scheme without weights is a pattern of GPTQ's `dynamic`
        schemes = ckpt.quantization.schemes
        key = next((scheme.key for scheme in schemes if scheme.weights is None and scheme.targets == (entry,)), None)
        effects = "; ".join(
            f"{mismatch.consumer.label} {describe_effect(mismatch, stored_name, built_name, scale)}"
            + (f" ({len(alike):,} of them)" if len(alike) < len(modules) else "")
            for mismatch, alike in zip(worst, of_consumers.values(), strict=True)
        )
        spared = _find_spared_engine(ckpt, modules, set(of_consumers))
        yield Problem(
            f"{modules[0]}{f' and {len(modules) - 1:,} more are' if len(modules) > 1 else ' is'} stored "
            f"{'' if first[0].is_stored_quantized else 'un'}quantized, but "
            f"{_explain_decision(first, entry, ckpt.quantization.method)}: {effects}"
            + (f"; {spared} is not affected, and slime reads the list as its author meant" if spared else ""),
            file=place.file if place else ckpt.quantization.main_declaration.file,
            key=place.key if place else key or ckpt.quantization.main_declaration.key,
            hint=_find_renamed_entry(ckpt, first, entry) or _write_hint(first, entry, ckpt.quantization.method),
            severity="warning" if spared else None,
            names=tuple(modules),
        )


def _find_spared_engine(ckpt: Checkpoint, modules: Iterable[str], hurt: set[str]) -> str:
    """Return SGLang's label if SGLang builds modules as they are stored and slime's list of parameters leaves them out.

    slime serves with SGLang, and its lists name parameters (``re:.*mlp.gate.weight$``), while vLLM matches them with modules. ""
    if the user names the consumers, or if the list does not match the modules in slime's reading either.
    """
    if ckpt.options.consumers or "sglang" in hurt:
        return ""
    stored = map_stored_modules(ckpt)
    found = evaluate_checkpoint(ckpt, ("sglang", "slime"))
    if set(found) != {"sglang", "slime"} or found["sglang"].is_unknown or found["sglang"].is_guess:
        return ""
    for name in modules:
        answers = [found[consumer].decisions.get(name) for consumer in ("sglang", "slime")]
        if any(answer is None or answer[1].quantized is not stored[name] for answer in answers):
            return ""
        if answers[1] is None or answers[1][1].entry is None:
            return ""
    return found["sglang"].consumer.label


def _are_experts_never_quantized(mismatches: list[Mismatch], entry: str | None) -> bool:
    """Whether these are experts that only transformers builds unquantized, because it joins a layer's experts into one module."""
    first, *others = mismatches
    return (
        first.is_stored_quantized
        and first.consumer.name == "transformers"
        and first.target_module.role == EXPERTS
        and not others
        and entry is None
    )


def _explain_decision(mismatches: list[Mismatch], entry: str | None, method: str | None) -> str:
    """Return a clause with the entry and the list that make the consumers build the module so, or that no entry does."""
    if _are_experts_never_quantized(mismatches, entry):
        name = mismatches[0].target_module.class_name
        return f"all experts of a layer are one {name} there, which is never quantized by {method}"
    if entry is None and _is_never_quantized(mismatches[0]):
        return f"built as {mismatches[0].target_module.class_name}, which is never quantized"
    if mismatches[0].is_stored_quantized:
        return f"ignored by {entry!r}" if entry is not None else "not targeted"
    return f"targeted by {entry!r} and not ignored" if entry is not None else "not ignored"


def _is_never_quantized(mismatch: Mismatch) -> bool:
    """Whether the consumer builds a module that is stored quantized without looking at the quantization config."""
    module = mismatch.target_module
    is_asked = module.is_quantizable and module.role != OTHER and not module.is_guess
    return mismatch.is_stored_quantized and not is_asked and module.role != EXPERTS


def _find_renamed_entry(ckpt: Checkpoint, mismatches: list[Mismatch], entry: str | None) -> str:
    """Return the hint for an entry that matches the consumer's names and no stored one: by these a tool chose what to pack."""
    assert ckpt.quantization is not None
    method = ckpt.quantization.method
    if entry is None or method != "compressed-tensors" or not mismatches[0].is_stored_quantized:
        return ""
    wider = f"re:.*{entry[3:]}"
    if not entry.startswith("re:") or matches_stored_name(ckpt, entry) or not matches_stored_name(ckpt, wider):
        return ""
    return (
        f"{entry} matches no stored name, so the tool quantized what it should leave out: quantize again with {wider}"
    )


def _write_hint(mismatches: list[Mismatch], entry: str | None, method: str | None) -> str:
    mismatch = mismatches[0]
    name = mismatch.module.rpartition(".")[2]
    if _are_experts_never_quantized(mismatches, entry):
        return "serve it with vLLM or SGLang, or load it with transformers 4, where each expert is a module by itself"
    if not mismatch.is_stored_quantized and (mismatch.consumer.name, method) == ("transformers", "gptq"):
        return "list the modules that are quantized under modules_in_block_to_quantize: transformers reads no other list of GPTQ"
    if not mismatch.is_stored_quantized:
        return "add it to the ignore list; ckptcheck scan --fix writes one that all these consumers read alike"
    if entry is not None and entry.startswith("re:"):
        end = re.split(r"[.\\]", entry)[-1]
        if end.isidentifier() and name.startswith(end) and name != end:
            return f"end the regex with $: {entry}$ does not match {name}"
    if entry is not None:
        return "take the entry out of the list, or quantize again with this module left out"
    if _is_never_quantized(mismatch):
        return "quantize again with these modules left out"
    return "add a target for it, or quantize again with this module left out"


def _quantized_weight_name(ckpt: Checkpoint) -> str:
    """Return the name of the weight in the checkpoint's quantized modules (``weight_packed``)."""
    assert ckpt.quantization is not None
    ways = (way.weight.role for way in ckpt.quantization.storages if way.is_quantized and way.weight is not None)
    return next(ways, "weight")
