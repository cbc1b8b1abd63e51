"""What each consumer would build from a quantized checkpoint, held against what is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ckptcheck.dialects.base import Module, Verdict
from ckptcheck.dialects.judgement import DIALECTS, Judgement, judge_all

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

USUAL = ("vllm", "sglang", "transformers")
"""Who is asked unless the user names others: those that load a checkpoint as it is."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Clash:
    """A module that a consumer builds otherwise than it is stored. stored: quantized or not; the verdict says the opposite."""

    consumer: str
    version: str
    module: str
    built: Module
    verdict: Verdict
    stored: bool

    @property
    def who(self) -> str:
        """The consumer with its version."""
        return f"{self.consumer} {self.version}"


_VIEWS: WeakKeyDictionary[Checkpoint, dict[str, Judgement]] = WeakKeyDictionary()


def views(ckpt: Checkpoint) -> dict[str, Judgement]:
    """Ask every chosen consumer, once for all rules. {} where the checkpoint is not quantized or no method is named."""
    if ckpt not in _VIEWS:
        _VIEWS[ckpt] = _views(ckpt, ckpt.options.consumers or USUAL)
    return _VIEWS[ckpt]


def _views(ckpt: Checkpoint, consumers: Iterable[str]) -> dict[str, Judgement]:
    quantization = ckpt.quantization
    if quantization is None or quantization.main is None or quantization.method is None:
        return {}
    names = stored(ckpt)
    packed = [name for name, quantized in names.items() if quantized]
    plain = [name for name, quantized in names.items() if not quantized]
    architecture = ckpt.config.architecture if ckpt.config is not None else None
    return {
        consumer: judge_all(
            consumer, architecture, names, quantization.config, quantization.method, packed=packed, plain=plain
        )
        for consumer in consumers
        if consumer in DIALECTS
    }


def stored(ckpt: Checkpoint) -> Mapping[str, bool]:
    """Return module → whether it is stored quantized, for modules with a weight of two or more dimensions.

    Experts that share a tensor are one module: ``model.layers.0.mlp.experts``.
    """
    found: dict[str, bool] = {}
    assert ckpt.quantization is not None
    for way, modules in ckpt.quantization.stored.items():
        weight = way.weight
        if weight is None or (len(weight.shape) < 2 and not way.is_quantized):
            continue
        shared = not weight.ending.startswith(".")
        for module in modules:
            name = module.rpartition(".")[0] if shared else module
            found[name] = found.get(name, False) or way.is_quantized
    return found


def clashes(ckpt: Checkpoint) -> list[Clash]:
    """Return where a consumer builds a module quantized that is not stored so, or the reverse.

    A consumer whose modules for this architecture are guessed is only believed where nothing but a list decides: in
    linear layers of attention, of MLPs, and in experts.
    """
    held = stored(ckpt)
    return [
        Clash(consumer, view.version, name, module, verdict, held[name])
        for consumer, view in views(ckpt).items()
        for name, (module, verdict) in view.verdicts.items()
        if verdict.quantized is not None and verdict.quantized != held[name] and not (view.guessed and _odd(name))
    ]


def refusals(ckpt: Checkpoint) -> list[tuple[str, str, list[str]]]:
    """Return (consumer, what it raises, the modules it raises on)."""
    found: dict[tuple[str, str], list[str]] = {}
    for consumer, view in views(ckpt).items():
        for name, (_, verdict) in view.verdicts.items():
            if verdict.error is not None:
                found.setdefault((f"{consumer} {view.version}", verdict.error), []).append(name)
    return [(who, error, sorted(modules, key=_order)) for (who, error), modules in found.items()]


@cache
def _odd(name: str) -> bool:
    """Whether a module is none of those that every engine builds in the same way."""
    return not re.search(r"\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|experts)$|\.experts\.", name)


def template(name: str) -> str:
    """Write a module's name with {} for its numbers."""
    return _NUMBER.sub("{}", name)


def _order(name: str) -> tuple[object, ...]:
    """Sort layer 10 after layer 9."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("."))


def in_order(names: Iterable[str]) -> list[str]:
    """Sort modules by name, layer 10 after layer 9."""
    return sorted(names, key=_order)
