"""vLLM 0.32.0: which modules it builds quantized.

Source: vllm/model_executor/layers/quantization/ (compressed_tensors/, fp8.py, auto_gptq.py, auto_awq.py, modelopt.py,
quark/, mxfp4.py) and the list helpers in utils/. A config is first renamed by the model's ``hf_to_vllm_mapper``.
Not modelled: what a GPU or a shape rules out after the name was judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptcheck.dialects import modelopt_vllm
from ckptcheck.dialects.base import EMBEDDING, EXPERTS, HEAD, LINEAR, Module, Question, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, Rule, equal, equal_or_regex, pieces
from ckptcheck.dialects.fused import Fused, agreed, by_suffix, shards
from ckptcheck.dialects.gptq import overrides
from ckptcheck.dialects.groups import Scheme, ignored, targets
from ckptcheck.dialects.reading import Reader, text_list

NAME, VERSION = "vllm", "0.32.0"
PLAIN = Verdict(quantized=False)


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where vLLM raises on it, Unknown for a method that is not modelled."""
    builders: dict[str, Callable[[Question], Reader]] = {
        "compressed-tensors": _compressed_tensors,
        "fp8": _fp8,
        "gptq": _gptq,
        "awq": _awq,
        "modelopt": modelopt_vllm.read,
        "quark": _quark,
        "mxfp4": _mxfp4,
    }
    method = "modelopt" if question.method.startswith("modelopt") else question.method
    if method in ("bitsandbytes", "gguf"):
        raise Refused(f"vLLM {VERSION} has no quantization method {method}")
    if method not in builders:
        raise Unknown(f"what vLLM makes of {method} is not known to ckptcheck")
    return builders[method](question)


def _compressed_tensors(question: Question) -> Reader:
    config, structure = question.config, question.structure
    if (config.get("sparsity_config") or {}).get("targets"):
        raise Refused("sparsity_config is no longer supported")
    schemes = targets(config, vllm=True)

    def rename(text: object) -> object:
        path = isinstance(text, str) and "." in text and not text.startswith("re:")
        return structure.rename(text) if path and isinstance(text, str) else text

    written = ignored(config)
    ignore = Entries([rename(text) for text in written], equal_or_regex, written=written, like_regex=True)
    named: dict[str, tuple[str, Scheme]] = {str(rename(name)): (name, scheme) for name, scheme in schemes.items()}
    wanted = list(named)
    target = Entries(wanted, equal_or_regex, written=[named[name][0] for name in wanted], like_regex=True)
    contained = Entries(wanted, _regex_only, written=target.written, like_regex=True)

    def scheme(name: str, kind: str) -> tuple[int | None, int | None]:
        """Return the entry that ignores a name, and else the target that it gets."""
        hit = _ignored(ignore, name, structure.fused)
        return (hit, None) if hit is not None else (None, _target(name, kind))

    def _target(name: str, kind: str) -> int | None:
        found = target.first(name)
        if found is None and (names := by_suffix(name, structure.fused)) is not None:
            matches = [target.first(shard) for shard in names]
            found = matches[0] if matches and None not in matches else None
        if found is None:
            found = _first_class(wanted, contained, kind)
            if found is not None:
                target.met(named[wanted[found]][0])
        return found

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:
            return _experts(module)
        if module.role not in (LINEAR, HEAD, EMBEDDING):
            return PLAIN
        hit, found = scheme(module.name, module.kind)
        if hit is not None:
            return Verdict(quantized=False, entry=ignore.written[hit])
        if found is None:
            return PLAIN
        name, values = named[wanted[found]]
        if module.role == EMBEDDING and not _packable(values):
            raise Refused("it only quantizes an embedding to integers by group or channel, without activations")
        return Verdict(quantized=True, scheme=name, entry=name)

    def _experts(module: Module) -> Verdict:
        if "Linear" in named and "RoutedExperts" not in named:
            named["RoutedExperts"] = named["Linear"]
            wanted.append("RoutedExperts")
        found = [scheme(f"{module.name}.0.{shard}", "RoutedExperts") for shard in module.shards]
        meant = [None if number is None else named[wanted[number]][1] for _, number in found]
        if any(each != meant[0] for each in meant):
            raise Refused(f"the projections of {module.name} get different schemes")
        hit, number = found[-1]
        if number is None:
            return Verdict(quantized=False, entry=None if hit is None else ignore.written[hit])
        return Verdict(quantized=True, scheme=named[wanted[number]][0], entry=named[wanted[number]][0])

    return Reader(judge, {"ignore": ignore, "targets": target})


def _regex_only(text: str) -> Rule:
    """Keep the regexes of a list of targets: they are matched with the class too."""
    rule = equal_or_regex(text)
    return rule if rule.pattern is not None else Rule()


def _first_class(wanted: Sequence[str], regexes: Entries, kind: str) -> int | None:
    """Return the first target that the class contains, in any case, or that is a regex matching it."""
    matched = regexes.first(kind)
    for number, text in enumerate(wanted):
        if number == matched or (not text.startswith("re:") and text.lower() in kind.lower()):
            return number
    return None


def _packable(scheme: Scheme) -> bool:
    weights, activations, _ = scheme
    values = dict(weights)
    return activations is None and values["type"] == "'int'" and values["strategy"] in ("'group'", "'channel'")


def _ignored(ignore: Entries, name: str, fused: Fused) -> int | None:
    """Return the entry that ignores a name: directly, or all shards of a fused one alike."""
    direct = ignore.all(name)
    if direct:
        return direct[0]
    names = shards(name, fused)
    return None if names is None else agreed(name, names, lambda shard: next(iter(ignore.all(shard)), None))


def _skipped(entries: Entries, name: str, fused: Fused, *, exact: bool) -> int | None:
    """Return the entry for which `is_layer_skipped` says yes. exact: its mode for fp8 and ModelOpt, else AWQ's."""
    direct = entries.first(name)
    names = shards(name, fused)
    if names is not None:
        return direct if direct is not None else agreed(name, names, entries.first)
    if exact and "experts" in name:
        return next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return direct


def _fp8(question: Question) -> Reader:
    config, structure = question.config, question.structure
    scheme = config.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise Refused("activation_scheme is neither static nor dynamic")
    if config.get("weight_block_size") is not None and scheme != "dynamic":
        raise Refused("blocks need a dynamic activation_scheme")
    key = "ignored_layers" if config.get("ignored_layers") else "modules_to_not_convert"
    written = text_list(config, key)
    entries = Entries([structure.rename(text) for text in written], equal, written=written)

    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, EXPERTS):
            return PLAIN
        hit = _skipped(entries, module.name, structure.fused, exact=True)
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {key: entries})


def _gptq(question: Question) -> Reader:
    config, structure = question.config, question.structure
    chosen = overrides(question, NAME)
    listed: list[object] = []

    def flatten(value: object) -> None:
        for each in value if isinstance(value, list) else [value]:
            flatten(each) if isinstance(each, list) else listed.append(each)

    flatten(config.get("modules_in_block_to_quantize") or [])
    if not all(isinstance(each, str) for each in listed):
        raise Refused("modules_in_block_to_quantize holds more than strings")
    given = bool(config.get("modules_in_block_to_quantize"))
    if not given and question.packed is None:
        raise Unknown("vLLM takes what is quantized from the dtypes on disk")
    texts = [structure.rename(str(each)) for each in (listed if given else sorted(question.packed or ()))]
    entries = Entries(texts, equal, written=listed or texts, keys=pieces(texts))

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:
            return chosen.judge(module.name)
        if module.role != LINEAR and not (module.role == HEAD and config.get("lm_head")):
            return PLAIN
        if texts:
            names = shards(module.name, structure.fused)
            hit = entries.first(module.name) if names is None else agreed(module.name, names, entries.first)
            if hit is None:
                chosen.entries.first(module.name)  # it is asked all the same, and raises on what is no regex
                return PLAIN
        return chosen.judge(module.name)

    used = {"dynamic": chosen.entries}
    return Reader(judge, {**used, "modules_in_block_to_quantize": entries} if listed else used)


def _awq(question: Question) -> Reader:
    config, structure = question.config, question.structure
    if config.get("w_bit", config.get("bits")) != 4:
        raise Refused("only 4 bits are supported")
    if "zero_point" not in config or not {"q_group_size", "group_size"} & config.keys():
        raise Refused("zero_point or group_size is missing")
    written = text_list(config, "modules_to_not_convert")
    if not written and question.plain is None:
        raise Unknown("vLLM takes what is not quantized from the dtypes on disk")
    texts = [structure.rename(text) for text in written or sorted(question.plain or ())]
    entries = Entries(texts, equal, written=written or texts, keys=pieces(texts))

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:
            hit = entries.first(module.name)
        elif module.role == LINEAR or (module.role == HEAD and config.get("lm_head")):
            hit = _skipped(entries, module.name, structure.fused, exact=False)
        else:
            return PLAIN
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"modules_to_not_convert": entries} if written else {})


def _quark(question: Question) -> Reader:
    config, structure = question.config, question.structure
    if not isinstance(config.get("export"), dict):
        raise Refused("export is missing")
    written = ignored(config, "exclude")
    if not all(isinstance(text, str) for text in written):
        raise Unknown("exclude holds more than strings")
    texts = [structure.rename(str(text)) for text in written]
    entries = Entries(texts, equal_or_regex, written=written, like_regex=True)

    def judge(module: Module) -> Verdict:
        hit = None
        if module.role == EXPERTS:
            children = (i for i, t in enumerate(texts) if t == module.name or t.startswith(module.name + "."))
            hit = next(children, None)
        if hit is None:
            hit = _ignored(entries, module.name, structure.fused)
        if module.role not in (LINEAR, EXPERTS):
            return PLAIN
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"exclude": entries})


def _mxfp4(question: Question) -> Reader:
    def judge(module: Module) -> Verdict:
        return Verdict(quantized=module.role == EXPERTS)

    return Reader(judge, {})
