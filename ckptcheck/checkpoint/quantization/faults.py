"""Holds the tensors of each way of storing a module against the format that the config declares for it.

Which scheme a module has is for its consumer's matching to say; where that is not asked, a way of storing is sound if it is
what any of the declared schemes demands, and is otherwise held against the one that it comes nearest to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

from ckptcheck.checkpoint.quantization.formats import FORMATS, Companion, Format
from ckptcheck.checkpoint.quantization.quantization import Quantization
from ckptcheck.checkpoint.quantization.schemes import Args, Scheme
from ckptcheck.checkpoint.quantization.stored import Part, Stored
from ckptcheck.phrase import shape as written
from ckptcheck.rule import Skip


@dataclass(frozen=True)
class Fault:
    """What is wrong with one tensor of a way of storing modules.

    kind: missing, surplus, dtype, shape, name (under another method's name), format (not a weight of this method at all),
    excluded (a weight that the config leaves alone), orphan and weightless (a companion without a quantized weight).
    text: what is wrong, as the end of a sentence about the tensor. scheme: what was declared, None where nothing fits.
    """

    kind: str
    role: str
    text: str
    form: Format | None = None
    scheme: Scheme | None = None


Held = Callable[[str], tuple[Scheme, ...]]
"""Module → the schemes of which any will do, () where nobody can tell what it has to be."""


def faults_of(quantization: Quantization, held: Held | None = None) -> list[tuple[Fault, Stored, list[str]]]:
    """Return what is wrong, with the way of storing and the modules that are stored so.

    Skips the rule where nobody here knows what to expect. held: None to take any of the declared schemes.
    """
    if not quantization.known and quantization.method is not None:
        raise Skip(f"quantization method {quantization.method} is not known to ckptcheck")
    choices = [choice for scheme in quantization.schemes for choice in choices_of(scheme)]
    if not choices:
        if quantization.main is None or not any(stored.is_quantized for stored in quantization.stored):
            return []
        raise Skip(f"the config does not say how {quantization.method} stores the weights")
    own = {companion.role for form, _ in choices for companion in form.companions}
    own |= {twin for form, _ in choices for _, twin in form.twins}
    found = []
    for stored, modules in quantization.stored.items():
        if stored.is_quantized:
            for schemes, alike in _by_schemes(modules, held or (lambda _: quantization.schemes)).items():
                found += [(fault, stored, alike) for fault in _against(stored, schemes)]
        else:
            left = [role for role in stored.companions if role in own]
            if stored.weight is None:  # one for each module is enough to say that its weight is not there
                found += [(Fault("weightless", role, ""), stored, modules) for role in left[:1]]
            else:
                found += [(Fault("orphan", role, ""), stored, modules) for role in left]
    return found


def _by_schemes(modules: list[str], held: Held) -> dict[tuple[Scheme, ...], list[str]]:
    found: dict[tuple[Scheme, ...], list[str]] = {}
    for module in modules:
        found.setdefault(held(module), []).append(module)
    return found


def _against(stored: Stored, schemes: tuple[Scheme, ...]) -> list[Fault]:
    """Return what is wrong with quantized modules that may have any of these schemes."""
    choices = [choice for scheme in schemes for choice in choices_of(scheme)]
    if not choices and stored.weight is not None:
        return [Fault("excluded", stored.weight.role, "", None, scheme) for scheme in schemes[:1]]
    return _nearest(stored, choices)


def choices_of(scheme: Scheme) -> Iterator[tuple[Format, Scheme]]:
    """Yield the formats in which modules of a scheme may be stored; none where its format is not known."""
    weights, name = scheme.weights, scheme.format
    if name is None or weights is None:
        return
    if name == "fp8":
        block = weights.strategy == "block"
        for form in (FORMATS["fp8-block" if block else "fp8-tensor"], FORMATS["fp8-mxfp4-experts"]):
            yield form, scheme
            for names in FP8_NAMES if block else (TENSOR_NAMES, *FP8_NAMES):
                yield (
                    replace(form, companions=tuple(_renamed(companion, names) for companion in form.companions)),
                    scheme,
                )
    elif name == "naive-quantized":
        yield FORMATS["float-quantized" if weights.type == "float" else "int-quantized"], scheme
    elif name in FORMATS:
        yield FORMATS[name], scheme


FP8_NAMES = tuple({"weight_scale_inv": name, "weight_scale": name} for name in ("scale", "scale_inv", "qscale_weight"))
"""How DeepSeek-V4 and Mistral's own files call the scales; transformers and engines rename them."""
TENSOR_NAMES = {"weight_scale": "weight_scale_inv", "input_scale": "activation_scale"}
"""What transformers writes for a scale per tensor; vLLM renames it for Mistral."""


def _renamed(companion: Companion, names: Mapping[str, str]) -> Companion:
    return replace(companion, role=names.get(companion.role, companion.role))


def _nearest(stored: Stored, choices: list[tuple[Format, Scheme]]) -> list[Fault]:
    weight = stored.weight
    assert weight is not None
    fitting = [(form, scheme) for form, scheme in choices if weight.role == form.weight and weight.dtype in form.dtypes]
    if not fitting:
        return [Fault("format", weight.role, "", *choices[0])] if choices else []
    found = min((list(judge(stored, form, scheme)) for form, scheme in fitting), key=len)
    if found:  # with another label on the weight alone, all may be sound: E4M3 called I8, which only packed experts are
        for form, scheme in choices:
            if weight.role == form.weight and weight.dtype not in form.dtypes and not any(judge(stored, form, scheme)):
                return [Fault("format", weight.role, "", form, scheme)]
    return found


def judge(stored: Stored, form: Format, scheme: Scheme) -> Iterator[Fault]:
    """Yield what is wrong with modules stored so, were they of this format and scheme."""
    assert scheme.weights is not None
    weight = stored.weight
    assert weight is not None
    sizes = _sizes(weight, form, scheme.weights)
    twins = dict(form.twins)
    known: set[str] = set()
    renamed: set[str] = set()
    for companion in form.companions:
        if companion.when and not CASES[companion.when](scheme):
            continue
        known.add(companion.role)
        part = stored.parts.get(companion.role)
        if part is None:
            twin = twins.get(companion.role)
            if twin is not None and twin in stored.parts:
                renamed.add(twin)
                yield Fault("name", twin, f"has to be called {companion.role}", form, scheme)
            elif not companion.optional:
                yield Fault("missing", companion.role, "", form, scheme)
        elif part.dtype not in companion.dtypes:
            yield Fault("dtype", part.role, f"is {part.dtype}, not {_either(companion.dtypes)}", form, scheme)
        elif sizes and companion.shapes and not _fits(part.shape, companion.shapes, sizes):
            wanted = _expected(companion.shapes, sizes[0])
            yield Fault("shape", part.role, f"is {written(part.shape)}, not {wanted}", form, scheme)
    for role in stored.companions:
        if role not in known and role not in renamed:
            yield Fault("surplus", role, "", form, scheme)


Sizes = dict[str, int]


def _sizes(weight: Part, form: Format, args: Args) -> list[Sizes]:
    """Return what O, I and the rest may be: several columns may pack into the same words. [] where nobody can tell."""
    if not form.shape:
        return []
    dimensions = form.shape.split()
    lead = len(weight.shape) - len(dimensions)
    if lead not in (0, 1) or 0 in weight.shape:
        return []
    known: Sizes = {"E": weight.shape[0] if lead else 0}
    if args.bits:
        known["b"] = args.bits
    if args.block:
        known["r"], known["c"] = args.block
    ranges: dict[str, tuple[int, int]] = {}
    for dimension, size in zip(dimensions, weight.shape[lead:], strict=True):
        name, _, rest = dimension.partition("*")
        name, _, below = name.partition("/")
        above, _, under = rest.partition("/")
        times = known.get(above) if above in ("b",) else int(above or 1)
        if times is None:
            return []
        divisor = int(under or below or 1)
        if name in ("O", "I"):
            ranges[name] = ((size - 1) * divisor // times + 1, size * divisor // times)
    found = []
    for rows, columns in product(sorted(set(ranges["O"]), reverse=True), sorted(set(ranges["I"]), reverse=True)):
        group = args.group_size if args.group_size and args.group_size > 0 else columns
        found.append({**known, "O": rows, "I": columns, "g": group})
    return found


def _fits(found: tuple[int, ...], shapes: tuple[str, ...], sizes: list[Sizes]) -> bool:
    return any(_dimensions(shape, size) in (found, None) for shape in shapes for size in sizes)


def _expected(shapes: tuple[str, ...], sizes: Sizes) -> str:
    """Write the shape that is wanted, of several the first one that has dimensions."""
    dimensions = [_dimensions(shape, sizes) for shape in shapes]
    return written(next((found for found in dimensions if found), ()))


def _dimensions(shape: str, sizes: Sizes) -> tuple[int, ...] | None:
    """Turn a shape of a table into numbers; None where the config does not give all of them."""
    found = []
    for dimension in shape.split():
        above, _, below = _factors(dimension)
        if any(factor not in sizes for factor in (*above, *below) if factor.isalpha()):
            return None
        value = [prod(sizes[part] if part.isalpha() else int(part) for part in side) for side in (above, below)]
        found.append(-(-value[0] // value[1]))
    return (sizes["E"], *found) if sizes["E"] else tuple(found)


@cache
def _factors(dimension: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    above, slash, below = dimension.partition("/")
    return tuple(above.split("*")), slash, tuple(below.split("*")) if below else ()


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} or {names[-1]}"


def _is(scheme: Scheme, *strategies: str) -> bool:
    return scheme.weights is not None and scheme.weights.strategy in strategies


def _asymmetric(scheme: Scheme) -> bool:
    return scheme.weights is not None and not scheme.weights.symmetric


def _static(scheme: Scheme) -> bool:
    """Whether the scales of the inputs are stored; those of a tensor group are computed, below a stored global one."""
    return scheme.inputs is not None and scheme.inputs.dynamic is False and scheme.inputs.strategy != "tensor_group"


CASES: dict[str, Callable[[Scheme], bool]] = {
    "tensor": lambda scheme: _is(scheme, "tensor"),
    "channel": lambda scheme: _is(scheme, "channel"),
    "group": lambda scheme: _is(scheme, "group", "tensor_group"),
    "block": lambda scheme: _is(scheme, "block"),
    "symmetric": lambda scheme: not _asymmetric(scheme),
    "asymmetric": _asymmetric,
    "asymmetric tensor": lambda scheme: _asymmetric(scheme) and _is(scheme, "tensor"),
    "asymmetric channel": lambda scheme: _asymmetric(scheme) and _is(scheme, "channel"),
    "asymmetric group": lambda scheme: _asymmetric(scheme) and _is(scheme, "group", "tensor_group"),
    "static input": _static,
    "dynamic input": lambda scheme: not _static(scheme),
    "static asymmetric input": lambda scheme: (
        _static(scheme) and scheme.inputs is not None and not scheme.inputs.symmetric
    ),
    "static global input": lambda scheme: (
        scheme.inputs is not None and scheme.inputs.strategy == "tensor_group" and scheme.inputs.dynamic is not True
    ),
    "no input": lambda scheme: scheme.inputs is None,
    "activation order": lambda scheme: scheme.weights is not None and scheme.weights.actorder is True,
    "no activation order": lambda scheme: scheme.weights is not None and scheme.weights.actorder is not True,
}
"""When a companion belongs to a module, by name."""
