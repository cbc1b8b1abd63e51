"""Asks one consumer about every module of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from ckptcheck.dialects import compressed_tensors, sglang, slime, structures, transformers, vllm
from ckptcheck.dialects.base import OTHER, Module, Question, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries
from ckptcheck.dialects.reading import Reader

_DOT = re.compile(r"\.")


class Dialect(Protocol):
    """One consumer at one version."""

    NAME: str
    VERSION: str

    def read(self, question: Question) -> Reader:
        """Read a config. Raises Refused where the consumer raises on it, Unknown for what is not modelled."""
        ...


DIALECTS: dict[str, Dialect] = {
    dialect.NAME: dialect for dialect in (vllm, sglang, transformers, compressed_tensors, slime)
}
"""By the name under which `judge_all` knows them."""


@dataclass(frozen=True)
class Judgement:
    """What one consumer makes of a checkpoint.

    verdicts: module of the checkpoint → the module it is loaded into and the verdict on that; one that the consumer
    builds nothing for is absent. error: it refuses the config as a whole. reason: nobody can tell what it makes of it.
    guessed: nobody has built the architecture with it. lists: key of each list → its entries with what they matched.
    names, rename: what was asked about, and what the consumer calls it. met: how often each entry
    of a list matched.
    """

    consumer: str
    version: str
    verdicts: Mapping[str, tuple[Module, Verdict]] = field(default_factory=dict)
    error: str | None = None
    reason: str | None = None
    guessed: bool = False
    lists: Mapping[str, Entries] = field(default_factory=dict)
    names: Collection[str] = field(default=(), repr=False)
    rename: Callable[[str], str] = field(default=str, repr=False)
    met: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def unmet(self, key: str) -> list[str]:
        """Return the entries of a list that match none of the modules that the consumer asks about, as written."""
        counted = zip(self.lists[key].written, self.met[key], strict=True)
        met = {text for text, count in counted if count}
        return [text for text in dict.fromkeys(self.lists[key].written) if text not in met]

    def dead(self, key: str) -> list[str]:
        """Return the entries of a list that match nothing, as written in the config.

        They were held against every module that the consumer asks about, and are held here against all names that the
        checkpoint's modules and what is around them have: an entry for a module that is never quantized is of no use,
        but it is no slip.
        """
        entries = self.lists[key]
        for name in () if all(use.count for use in entries.uses) else self._around:
            if all(use.count for use in entries.uses):
                break
            try:
                entries.hits(name)
            except Unknown:
                return []
        used: dict[str, int] = {}
        for text, use in zip(entries.written, entries.uses, strict=True):
            used[text] = used.get(text, 0) + use.count
        return [text for text, count in used.items() if not count]

    @cached_property
    def _around(self) -> list[str]:
        """Names by which the consumer could know what is there: of modules, of their checkpoint's, and of what holds them."""
        own = {module.name for module, _ in self.verdicts.values()}
        names = own | {*self.names} | {self.rename(name) for name in self.names}
        parents = {name[: dot.start()] for name in names for dot in _DOT.finditer(name)}
        return sorted(names | parents)


def judge_all(
    consumer: str,
    architecture: str | None,
    names: Collection[str],
    config: Mapping[str, Any],
    method: str | None = None,
    *,
    packed: Iterable[str] | None = None,
    plain: Iterable[str] | None = None,
) -> Judgement:
    """Judge every module of a checkpoint as a consumer would.

    consumer: a key of `DIALECTS`. architecture: the first of the config's ``architectures``. names: paths of the
    checkpoint's modules with a weight of two or more dimensions (``model.layers.0.self_attn.q_proj``,
    ``model.layers.0.mlp.experts``). config: the quantization config as parsed. method: its ``quant_method`` where that
    is not in it. packed, plain: the modules that hold a tensor which is not F16, BF16 or F32, and those that hold only
    such; vLLM needs them for GPTQ and AWQ without a list.
    """
    dialect = DIALECTS[consumer]
    method = str(method or config.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    built_by = {"compressed-tensors": "transformers"}.get(consumer, consumer)
    shape = structures.structure(built_by, architecture)
    question = Question(
        method,
        config,
        shape,
        None if packed is None else frozenset(packed),
        None if plain is None else frozenset(plain),
    )
    try:
        reader = dialect.read(question)
    except Refused as error:
        return Judgement(consumer, dialect.VERSION, error=str(error), guessed=shape.guessed)
    except Unknown as reason:
        return Judgement(consumer, dialect.VERSION, reason=str(reason), guessed=shape.guessed)
    if consumer == "slime":
        built = [Module(f"{name}.weight", "Parameter", OTHER, (name,)) for name in names]
    else:
        built = structures.modules(built_by, architecture, method, names)
    verdicts: dict[str, tuple[Module, Verdict]] = {}
    for module in built:
        verdict = _verdict(reader, module)
        verdicts.update(dict.fromkeys(module.parts, (module, verdict)))
    return Judgement(
        consumer,
        dialect.VERSION,
        verdicts,
        guessed=shape.guessed and consumer != "slime",
        lists=reader.lists,
        names=names,
        rename=shape.rename,
        met={key: tuple(use.count for use in entries.uses) for key, entries in reader.lists.items()},
    )


def _verdict(reader: Reader, module: Module) -> Verdict:
    if not module.quantizable:
        return Verdict(quantized=False)
    try:
        return reader.judge(module)
    except Refused as error:
        return Verdict(quantized=None, error=str(error))
    except Unknown as reason:
        return Verdict(quantized=None, reason=str(reason))
