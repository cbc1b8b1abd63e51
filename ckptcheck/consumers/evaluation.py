"""Evaluates how one consumer builds every module of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ckptcheck.consumers.base import ConsumerError, ConsumerInput, Decision, Module, SplitModuleError, UnknownBehavior
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import EntryList
from ckptcheck.consumers.registry import CONSUMERS

_DOT = re.compile(r"\.")


@dataclass(frozen=True)
class Evaluation:
    """How one consumer builds a checkpoint."""

    consumer: Consumer
    decisions: Mapping[str, tuple[Module, Decision]] = field(default_factory=dict)
    """Module of the checkpoint → the consumer's module that loads it, and the decision on that. Modules for which the consumer
    builds nothing are absent."""
    error: str | None = None
    """What the consumer raises on the config as a whole."""
    reason: str | None = None
    """Why ckptcheck does not know how the consumer reads the config."""
    is_guess: bool = False
    """Whether the modules are guessed, because the tables were not recorded from a built model of the architecture."""
    is_unknown: bool = False
    """Whether the tables lack even the architecture's class."""
    lists: Mapping[str, EntryList] = field(default_factory=dict)
    """Key of each list in the config → its entries, with what they match."""
    module_names: Collection[str] = field(default=(), repr=False)
    """The checkpoint's modules that were evaluated."""
    rename: Callable[[str], str] = field(default=str, repr=False)
    """Turns a name of the checkpoint into the consumer's."""

    def unused_entries(self, key: str) -> list[str]:
        """Return the entries of a list that match nothing at all, as the config has them.

        An entry also counts as used if it matches a module of the checkpoint or a parent of one: an entry for a module that is
        never quantized has no effect, but is no mistake.
        """
        entries = self.lists[key]
        idle = {number for number, use in enumerate(entries.usages) if not use.count}
        for name in self._known_names if idle else ():
            try:
                idle.difference_update(entries.match_all(name))
            except UnknownBehavior:
                return []
            if not idle:
                break
        counts: dict[str, int] = {}
        for text, use in zip(entries.originals, entries.usages, strict=True):
            counts[text] = counts.get(text, 0) + use.count
        return [text for text, count in counts.items() if not count]

    @cached_property
    def _known_names(self) -> list[str]:
        """All names that an entry could mean: the consumer's modules, the checkpoint's modules, and their parents."""
        own_names = {module.name for module, _ in self.decisions.values()}
        names = own_names | {*self.module_names} | {self.rename(name) for name in self.module_names}
        parents = {name[: dot.start()] for name in names for dot in _DOT.finditer(name)}
        return sorted(names | parents)


def evaluate_consumer(
    name: str,
    architecture: str | None,
    names: Collection[str],
    config: Mapping[str, Any],
    method: str | None = None,
    *,
    packed: Iterable[str] | None = None,
    plain: Iterable[str] | None = None,
) -> Evaluation:
    """Decide for every module of a checkpoint whether a consumer builds it quantized.

    Args:
        name: a key of `CONSUMERS`.
        architecture: the first of the config's ``architectures``.
        names: paths of the checkpoint's modules with a weight of two or more dimensions
            (``model.layers.0.self_attn.q_proj``, ``model.layers.0.mlp.experts``).
        config: the quantization config as parsed.
        method: the ``quant_method``, if the config does not have it.
        packed: the modules with a tensor that is not F16, BF16 or F32. vLLM needs it for GPTQ without a list.
        plain: the modules with only such tensors. vLLM needs it for AWQ without a list.
    """
    consumer = CONSUMERS[name]
    method = str(method or config.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    structure = consumer.structures.load_structure(architecture)
    request = ConsumerInput(
        method,
        config,
        structure,
        None if packed is None else frozenset(packed),
        None if plain is None else frozenset(plain),
    )
    try:
        policy = consumer.read_config(request)
    except ConsumerError as error:
        return Evaluation(consumer, error=str(error), is_guess=structure.is_guess)
    except UnknownBehavior as reason:
        return Evaluation(consumer, reason=str(reason), is_guess=structure.is_guess)
    decisions: dict[str, tuple[Module, Decision]] = {}
    for module in consumer.structures.build_modules(architecture, method, names):
        decision = _decide(policy, module)
        decisions.update(dict.fromkeys(module.sources, (module, decision)))
    return Evaluation(
        consumer,
        decisions,
        is_guess=structure.is_guess,
        is_unknown=structure.is_unknown,
        lists=policy.lists,
        module_names=names,
        rename=structure.rename,
    )


def _decide(policy: QuantizationPolicy, module: Module) -> Decision:
    if not module.is_quantizable:
        return Decision(quantized=False)
    try:
        return policy.decide(module)
    except ConsumerError as error:
        return Decision(quantized=None, error=str(error), splits_module=isinstance(error, SplitModuleError))
    except UnknownBehavior as reason:
        return Decision(quantized=None, reason=str(reason))
