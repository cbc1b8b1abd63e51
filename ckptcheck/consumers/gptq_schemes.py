"""Selects the settings of GPTQ or AutoRound that a module must have: some modules have their own, or none.

GPTQ has patterns in ``dynamic``, AutoRound names and patterns in ``extra_config``.

GPTQModel, which writes such checkpoints, and transformers, which loads them through it, match the module's own name
(`dynamic_get` of gptqmodel/quantization/config.py). vLLM and SGLang match the name of the module that they build
(``qkv_proj``), so a pattern may be written for that name. It counts if no pattern matches the module's own name.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.faults import SchemeSelector
from ckptcheck.checkpoint.quantization.quantization import Quantization
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.consumers.base import ConsumerError, UnknownBehavior
from ckptcheck.consumers.gptq import read_dynamic_patterns
from ckptcheck.consumers.mismatches import evaluate_checkpoint, to_first_expert

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def make_scheme_selector(ckpt: Checkpoint) -> SchemeSelector | None:
    """Return a function from module to the schemes it may have; None if it may have any of the declared ones."""
    quantization = ckpt.quantization
    if quantization is None or len(quantization.schemes) < 2:
        return None
    if quantization.method == "auto-round":
        return _select_by_name(quantization)
    if quantization.method != "gptq":
        return None
    every, *special = quantization.schemes
    entries = read_dynamic_patterns([scheme.targets[0] for scheme in special], like_regex=True)
    verdicts = [view.decisions for view in evaluate_checkpoint(ckpt).values()]

    @cache
    def scheme(name: str) -> Scheme | None:
        """Return the scheme of the first pattern that matches a name."""
        hit = entries.first_match(name)
        return special[hit] if hit is not None else None

    def choose(module: str) -> tuple[Scheme, ...]:
        try:
            if (own := scheme(module)) is not None:
                return (own,) if own.weights is not None or own.targets[0].startswith("-:") else ()
            built_names = [
                by_module[name][0].name
                for by_module in verdicts
                for name in (module, to_first_expert(module))
                if name in by_module
            ]
            return tuple(
                dict.fromkeys(
                    [every, *(special_scheme for name in built_names if (special_scheme := scheme(name)) is not None)]
                )
            )
        except (ConsumerError, UnknownBehavior):
            return quantization.schemes

    return choose


def _select_by_name(quantization: Quantization) -> SchemeSelector:
    """Return a function that gives a module the scheme that names it, else every scheme that may be a pattern for it."""
    every, *special = quantization.schemes
    named = {scheme.targets[0]: scheme for scheme in special if scheme.targets[0] in quantization.storage_by_module}
    others = (every, *(scheme for scheme in special if scheme.targets[0] not in named))

    def choose(module: str) -> tuple[Scheme, ...]:
        return (named[module],) if module in named else others

    return choose
