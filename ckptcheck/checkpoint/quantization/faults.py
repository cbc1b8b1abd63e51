"""Compares the tensors of each module storage with the format that the config declares.

A consumer's matching decides which scheme a module has. Without it, a storage is sound if it fits any declared scheme; if it
fits none, it is compared with the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from math import prod

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.quantization.formats import FORMATS, Companion, WeightFormat
from ckptcheck.checkpoint.quantization.quantization import Quantization
from ckptcheck.checkpoint.quantization.schemes import QuantizationArgs, Scheme
from ckptcheck.checkpoint.quantization.storage import ModuleStorage, ModuleTensor
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count
from ckptcheck.text.formatting import format_shape as written


class FormatFault(msgspec.Struct, frozen=True):
    """A fault of one tensor in the storage of modules: it does not fit the format that the config declares."""

    kind: str
    """missing, surplus, dtype, shape, name (under another method's name), format (not a weight of this method at all), orphan
    and weightless (a companion without a quantized weight)."""
    role: str
    """The role of the tensor in its module."""
    text: str
    """What is wrong, as the end of a sentence about the tensor."""
    form: WeightFormat | None = None
    """The format that the tensor was compared with, or None."""
    scheme: Scheme | None = None
    """The declared scheme; None if no scheme fits."""

    @property
    def needs(self) -> str:
        """The programs that need the tensor, as a clause; empty without a format."""
        if self.form is None:
            return ""
        return next((part.needs for part in self.form.companions if part.role == self.role), "") or self.form.needs

    @property
    def scheme_key(self) -> str:
        """Where the config declares the scheme; empty without a scheme."""
        return self.scheme.key if self.scheme is not None else ""


SchemeSelector = Callable[[str], tuple[Scheme, ...]]
"""Maps a module to its acceptable schemes; () if its scheme is unknown."""


def find_format_faults(
    quantization: Quantization, select_schemes: SchemeSelector | None = None
) -> list[tuple[FormatFault, ModuleStorage, list[str]]]:
    """Return each fault with the storage that has it and the modules stored so.

    select_schemes: the acceptable schemes of a module; None to accept any declared scheme. Raises Skip if the method is unknown,
    or if its config does not give the format of the weights.
    """
    if not quantization.is_known_method and quantization.method is not None:
        raise Skip(f"quantization method {quantization.method} is not known to ckptcheck")
    choices = [choice for scheme in quantization.schemes for choice in formats_of_scheme(scheme)]
    if not choices:
        if quantization.main_declaration is None or not any(stored.is_quantized for stored in quantization.storages):
            return []
        raise Skip(f"the config does not say how {quantization.method} stores the weights")
    own = {companion.role for form, _ in choices for companion in form.companions}
    own |= {twin for form, _ in choices for _, twin in form.twins}
    used = {role for stored in quantization.storages if stored.is_quantized for role in stored.companions}
    faults = []
    for stored, modules in quantization.storages.items():
        if stored.is_quantized:
            for schemes, alike in _by_schemes(modules, select_schemes, quantization.schemes).items():
                faults += [(fault, stored, alike) for fault in _against(stored, schemes)]
        else:
            companions = [role for role in stored.companions if role in own]
            # One fault per module is enough to report that its weight is missing. A model may have a parameter called `scale`
            # (the router of Gemma 4), so a lone `scale` counts as a companion only if other weights have one.
            if stored.weight is None:
                companions = [role for role in companions if role not in OTHER_NAMES or role in used]
                faults += [(FormatFault("weightless", role, ""), stored, modules) for role in companions[:1]]
            else:
                faults += [(FormatFault("orphan", role, ""), stored, modules) for role in companions]
    return faults


def _by_schemes(
    modules: list[str], select_schemes: SchemeSelector | None, declared: tuple[Scheme, ...]
) -> dict[tuple[Scheme, ...], list[str]]:
    if select_schemes is None:
        return {declared: modules}
    groups: dict[tuple[Scheme, ...], list[str]] = {}
    for module in modules:
        groups.setdefault(select_schemes(module), []).append(module)
    return groups


def _against(stored: ModuleStorage, schemes: tuple[Scheme, ...]) -> list[FormatFault]:
    """Return the faults of quantized modules that may have any of these schemes."""
    choices = [choice for scheme in schemes for choice in formats_of_scheme(scheme)]
    return _nearest(stored, choices)


def formats_of_scheme(scheme: Scheme) -> Iterator[tuple[WeightFormat, Scheme]]:
    """Yield the formats in which modules of a scheme may be stored; none where its format is unknown."""
    weights, name = scheme.weights, scheme.format
    if name is None or weights is None:
        return
    if name == "fp8":
        block = weights.strategy == "block"
        for form in (FORMATS["fp8-block" if block else "fp8-tensor"], FORMATS["fp8-mxfp4-experts"]):
            yield form, scheme
            for names in FP8_NAMES if block else (TENSOR_NAMES, *FP8_NAMES):
                yield (
                    structs.replace(
                        form, companions=tuple(_renamed(companion, names) for companion in form.companions)
                    ),
                    scheme,
                )
    elif name == "naive-quantized":
        yield FORMATS["float-quantized" if weights.type == "float" else "int-quantized"], scheme
    elif name in FORMATS:
        yield FORMATS[name], scheme


FP8_NAMES = tuple({"weight_scale_inv": name, "weight_scale": name} for name in ("scale", "scale_inv", "qscale_weight"))
"""Names of the scales in DeepSeek-V4's and Mistral's own files; transformers and the engines rename them."""
TENSOR_NAMES = {"weight_scale": "weight_scale_inv", "input_scale": "activation_scale"}
"""Names that transformers writes for a scale per tensor; vLLM renames them for Mistral."""
OTHER_NAMES = {name for names in (*FP8_NAMES, TENSOR_NAMES) for name in names.values()} - {"weight_scale_inv"}
"""All unusual names of a scale."""


def _renamed(companion: Companion, names: Mapping[str, str]) -> Companion:
    return structs.replace(companion, role=names.get(companion.role, companion.role))


def _nearest(stored: ModuleStorage, choices: list[tuple[WeightFormat, Scheme]]) -> list[FormatFault]:
    weight = stored.weight
    assert weight is not None
    fitting = [(form, scheme) for form, scheme in choices if weight.role == form.weight and weight.dtype in form.dtypes]
    if not fitting:
        return [FormatFault("format", weight.role, "", *choices[0])] if choices else []
    faults = min((list(check_format(stored, form, scheme)) for form, scheme in fitting), key=len)
    if faults:  # only the weight's label may differ, as E4M3 called I8, which only packed experts really are
        for form, scheme in choices:
            if (
                weight.role == form.weight
                and weight.dtype not in form.dtypes
                and not any(check_format(stored, form, scheme))
            ):
                return [FormatFault("format", weight.role, "", form, scheme)]
    return faults


def check_format(stored: ModuleStorage, form: WeightFormat, scheme: Scheme) -> Iterator[FormatFault]:
    """Yield the faults that a storage has if its modules are of this format and scheme."""
    assert scheme.weights is not None
    weight = stored.weight
    assert weight is not None
    dimensions = len(form.shape.split())
    if dimensions and len(weight.shape) not in (dimensions, dimensions + 1):
        told = f"{count(len(weight.shape), 'dimension')}, not {dimensions} (or {dimensions + 1} for experts together)"
        yield FormatFault("shape", weight.role, f"{written(weight.shape)} has {told}", form, scheme)
    fixed = [int(part) if part.isdigit() else None for part in form.shape.split()]
    last = weight.shape[-len(fixed) :] if fixed else ()
    if len(last) == len(fixed) and any(size not in (None, found) for size, found in zip(fixed, last, strict=True)):
        told = f"{written(weight.shape)} does not end with {fixed[-1]}"
        yield FormatFault("shape", weight.role, told, form, scheme)
    sizes = _sizes(weight, form, scheme.weights)
    if sizes and not (sizes := [each for each in sizes if each.get("I", 0) % form.whole == 0]):
        told = f"{written(weight.shape)} does not divide into groups of {form.whole} numbers"
        yield FormatFault("shape", weight.role, told, form, scheme)
    twins = dict(form.twins)
    known: set[str] = set()
    renamed: set[str] = set()
    for companion in form.companions:
        if companion.when and not _applies(companion.when, scheme, stored):
            continue
        known.add(companion.role)
        part = stored.parts.get(companion.role)
        if part is None:
            twin = twins.get(companion.role)
            if twin is not None and twin in stored.parts:
                renamed.add(twin)
                yield FormatFault("name", twin, f"must be named {companion.role}", form, scheme)
            elif not companion.optional:
                yield FormatFault("missing", companion.role, "", form, scheme)
        elif part.dtype not in companion.dtypes:
            yield FormatFault("dtype", part.role, f"is {part.dtype}, not {_either(companion.dtypes)}", form, scheme)
        elif sizes and companion.shapes and not _fits(part.shape, companion.shapes, sizes):
            expected = _expected(companion.shapes, sizes[0])
            yield FormatFault("shape", part.role, f"is {written(part.shape)}, not {expected}", form, scheme)
    for role in stored.companions:
        if role not in known and role not in renamed:
            yield FormatFault("surplus", role, "", form, scheme)


def _applies(case: str, scheme: Scheme, stored: ModuleStorage) -> bool:
    """Whether a companion belongs to a module: by its scheme, or for bitsandbytes by the scales themselves."""
    if case == "quantized scales":
        return "absmax" in stored.parts and stored.parts["absmax"].dtype == "U8"
    return CASES[case](scheme)


Sizes = dict[str, int]


def _sizes(weight: ModuleTensor, form: WeightFormat, args: QuantizationArgs) -> list[Sizes]:
    """Return the possible values of O, I and the other symbols; [] if they are unknown.

    There may be several: different numbers of columns pack into the same number of words.
    """
    if not form.shape:
        return [{"E": 0}]
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
    candidates = []
    for rows, columns in product(sorted(set(ranges["O"]), reverse=True), sorted(set(ranges["I"]), reverse=True)):
        group = args.group_size if args.group_size and args.group_size > 0 else columns
        candidates.append({**known, "O": rows, "I": columns, "g": group})
    return candidates


def _fits(found: tuple[int, ...], shapes: tuple[str, ...], sizes: list[Sizes]) -> bool:
    return any(_dimensions(shape, size) in (found, None) for shape in shapes for size in sizes)


def _expected(shapes: tuple[str, ...], sizes: Sizes) -> str:
    """Format the expected shape; of several the first one that has dimensions."""
    dimensions = [_dimensions(shape, sizes) for shape in shapes]
    return written(next((sizes_found for sizes_found in dimensions if sizes_found), ()))


def _dimensions(shape: str, sizes: Sizes) -> tuple[int, ...] | None:
    """Evaluate a shape of the tables; None if the config does not give all of its symbols."""
    numbers = []
    for dimension in shape.split():
        above, _, below = _factors(dimension)
        if any(factor not in sizes for factor in (*above, *below) if factor.isalpha()):
            return None
        value = [prod(sizes[part] if part.isalpha() else int(part) for part in side) for side in (above, below)]
        numbers.append(-(-value[0] // value[1]))
    return (sizes["E"], *numbers) if sizes["E"] else tuple(numbers)


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
    """Whether the scales of the inputs are stored. With tensor groups the engine computes them below a stored global scale."""
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
    "static output": lambda scheme: scheme.outputs is not None and scheme.outputs.dynamic is False,
    "static global input": lambda scheme: (
        scheme.inputs is not None and scheme.inputs.strategy == "tensor_group" and scheme.inputs.dynamic is not True
    ),
    "no input": lambda scheme: scheme.inputs is None,
    "activation order": lambda scheme: scheme.weights is not None and scheme.weights.actorder is True,
    "no activation order": lambda scheme: scheme.weights is not None and scheme.weights.actorder is not True,
}
"""Name → the condition on the scheme under which a companion belongs to a module."""
