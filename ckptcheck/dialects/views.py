"""What each consumer would build from a quantized checkpoint, held against what is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ckptcheck.dialects.base import Module, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, equal_or_regex
from ckptcheck.dialects.judgement import DIALECTS, Judgement, judge_all
from ckptcheck.phrase import natural

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

USUAL = ("vllm", "sglang")
"""Who is asked unless the user names others: the engines. transformers 5 leaves much out that engines load, such as the
quantized experts of most architectures."""
PARTS = " and not "
"""What an error says of a fused module whose parts are treated differently."""
MAX_PATTERN = 200
"""Characters of an entry for which it is tried what else it may mean."""
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
    if not ckpt.options.consumers:  # the engines judge the experts of a layer by the names of the first
        names = {name: quantized for name, quantized in names.items() if not _as_the_first(name, names)}
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


def _as_the_first(name: str, names: Mapping[str, bool]) -> bool:
    """Whether a module is one of an expert that is stored as that of expert 0 is."""
    first = first_expert(name)
    return first != name and names.get(first) == names[name]


def first_expert(name: str) -> str:
    """Write a module of one expert as that of expert 0; others as they are."""
    layer, inside, rest = name.partition(".experts.")
    _, inside, projection = rest.partition(".") if inside else ("", "", "")
    return f"{layer}.experts.0.{projection}" if inside else name


def stored(ckpt: Checkpoint) -> Mapping[str, bool]:
    """Return module → whether it is stored quantized, for modules with a weight of two or more dimensions.

    Experts that share a tensor are one module: ``model.layers.0.mlp.experts``.
    """
    if ckpt not in _STORED:
        _STORED[ckpt] = _stored(ckpt)
    return _STORED[ckpt]


_STORED: WeakKeyDictionary[Checkpoint, dict[str, bool]] = WeakKeyDictionary()


def _stored(ckpt: Checkpoint) -> dict[str, bool]:
    found: dict[str, bool] = {}
    assert ckpt.quantization is not None
    for way, modules in ckpt.quantization.stored.items():
        weight = way.weight
        if weight is None or (len(weight.shape) < 2 and not way.is_quantized):
            continue
        if weight.ending.startswith("."):
            found.update(dict.fromkeys(modules, way.is_quantized))
            continue
        for module in modules:
            name = module.rpartition(".")[0]
            found[name] = found.get(name, False) or way.is_quantized
    return found


def clashes(ckpt: Checkpoint, *, quantized: bool) -> list[Clash]:
    """Return the modules that are stored quantized (or not) and that a consumer builds otherwise.

    A consumer that knows nothing of the method, and would build no module quantized, is left out: it was not meant. One
    whose modules for this architecture are guessed is only believed where nothing but a list decides: in linear layers
    of attention, of MLPs, and in experts. slime packs what it sends and loads nothing: `repacked` has it.
    """
    if ckpt not in _CLASHES:
        _CLASHES[ckpt] = [clash for name in views(ckpt) if name != "slime" for clash in _of(ckpt, name)]
    return [clash for clash in _CLASHES[ckpt] if clash.stored == quantized]


_CLASHES: WeakKeyDictionary[Checkpoint, list[Clash]] = WeakKeyDictionary()


def _of(ckpt: Checkpoint, consumer: str) -> list[Clash]:
    view, held = views(ckpt)[consumer], stored(ckpt)
    built = _built(view)
    if not any(verdict.quantized for _, verdict in built):
        return []
    return [
        Clash(consumer, view.version, name, module, verdict, held[name])
        for module, verdict in built
        if verdict.quantized is not None
        for name in module.parts
        if verdict.quantized is not held[name] and not (view.guessed and is_odd(name))
    ]


def _built(view: Judgement) -> list[tuple[Module, Verdict]]:
    """Return each module that a consumer builds once, however many of the checkpoint's go into it."""
    return list({id(pair): pair for pair in view.verdicts.values()}.values())


def repacked(ckpt: Checkpoint) -> list[tuple[Clash, Clash]]:
    """Return modules that slime, syncing weights, packs and an engine builds plain, or the reverse: (slime's, the engine's)."""
    every = views(ckpt)
    if "slime" not in every:
        return []
    sender, held = every["slime"], stored(ckpt)
    found = []
    for consumer in ("sglang", "vllm"):
        for name, (module, verdict) in (every[consumer].verdicts if consumer in every else {}).items():
            sent = sender.verdicts.get(name)
            if sent is None or None in (verdict.quantized, sent[1].quantized) or sent[1].quantized == verdict.quantized:
                continue
            own = Clash("slime", sender.version, name, sent[0], sent[1], held[name])
            found.append((own, Clash(consumer, every[consumer].version, name, module, verdict, held[name])))
    return found


def refusals(ckpt: Checkpoint) -> list[tuple[str, str, int]]:
    """Return (consumer, what it raises at the first module, how many modules of the same kind it raises at)."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for consumer, view in views(ckpt).items():
        for module, verdict in _built(view):
            if verdict.error is not None:
                alike = (f"{consumer} {view.version}", template(verdict.error))
                found.setdefault(alike, {})[module.name] = verdict.error
    return [(who, errors[in_order(errors)[0]], len(errors)) for (who, _), errors in found.items()]


@cache
def is_odd(name: str) -> bool:
    """Whether a module is none of those that every engine builds in the same way."""
    return not re.search(r"\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|experts)$|\.experts\.", name)


def template(name: str) -> str:
    """Write a module's name with {} for its numbers."""
    return _NUMBER.sub("{}", name)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort modules by name, layer 10 after layer 9."""
    return sorted(names, key=natural)


@dataclass(frozen=True)
class Dead:
    """An entry that matches nothing for anybody. meant: what it was probably meant to be, None where nothing is near."""

    text: str
    file: str
    key: str
    meant: str | None


def dead(ckpt: Checkpoint) -> list[Dead]:
    """Return the entries of the ignore lists that match no module for any consumer that reads them.

    An entry that names a module which is there but holds no matrix, or one below a module that is there, has its sense for
    the tool that wrote it; so has the head of a model that has none of its own.
    """
    assert ckpt.quantization is not None
    readers = [view for view in views(ckpt).values() if view.lists and not view.guessed]
    if not readers:
        return []
    unused = set.intersection(*({text for key in view.lists for text in view.dead(key)} for view in readers))
    if not any(entry.text in unused for entry in ckpt.quantization.ignore):
        return []
    names = set(stored(ckpt))
    known = {name.rpartition(".")[0] for name in ckpt.tensors}
    parents = {name[:at] for name in known for at in range(len(name)) if name[at] == "."}
    return [
        Dead(entry.text, entry.file, entry.key, _meant(entry.text, names))
        for entry in ckpt.quantization.ignore
        if entry.text in unused and entry.text not in known | parents and entry.text not in ("lm_head", "re:.*lm_head")
    ]


def _meant(text: str, names: set[str]) -> str | None:
    """Return what an entry was probably meant to be: with ``re:``, without a wrapper's prefix or suffix, or the nearest name."""
    bare = text.removeprefix("re:")
    if not text.startswith("re:") and re.search(r"[\\*^$|]", text) and len(text) < MAX_PATTERN:
        return f"re:{text}" if _matches(f"re:{text}", names) else None
    if text.startswith("re:"):
        if len(text) < MAX_PATTERN and _matches(f"re:.*{bare}", names):
            return f"re:.*{bare}"
        return None
    for shorter in (
        text.removesuffix(".linear"),
        text.removesuffix(".weight"),
        *(text[at + 1 :] for at in _dots(text)),
    ):
        if shorter != text and (shorter in names or any(name.endswith(f".{shorter}") for name in names)):
            return next((name for name in sorted(names) if name == shorter or name.endswith(f".{shorter}")), None)
    return next(iter(get_close_matches(text, names, 1, 0.85)), None)


def _dots(text: str) -> list[int]:
    return [at for at, char in enumerate(text) if char == "."][:2]


def _matches(text: str, names: set[str]) -> bool:
    entries = Entries([text], equal_or_regex)
    try:
        return any(entries.all(name) for name in names)
    except (Refused, Unknown):
        return False
