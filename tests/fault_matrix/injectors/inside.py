"""Faults of an engine's state and of what it computes: weights arrive, and it computes with something else.

Each takes the model and changes it until the faults are taken out. Modules and parameters are named as the engine names them.
"""

from __future__ import annotations

import copy
from typing import Any

from undo import at_end, replace

LEAKED: list[Any] = []


def find_module(model: Any, name: str) -> Any:
    """Return a module by its name, or by the only end of a name that fits."""
    modules = dict(model.named_modules())
    if name in modules:
        return modules[name]
    found = [module for own, module in modules.items() if own.endswith(name)]
    if not found:
        raise LookupError(f"the model has no module {name}")
    return found[0]


def find_tensor(model: Any, name: str) -> Any:
    """Return a parameter or buffer by its name, or by the first end of a name that fits."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for own, tensor in tensors.items():
        if own == name or own.endswith(name):
            return tensor
    for own, tensor in tensors.items():  # "layers.1.*w13_weight": two ends of a part of the name
        head, _, tail = name.partition("*")
        if tail and head in own and own.endswith(tail):
            return tensor
    raise LookupError(f"the model has no tensor {name}")


def flip_bit(model: Any, tensor: str, element: int, bit: int) -> None:
    """Flip a bit of a tensor."""
    import torch

    flat = find_tensor(model, tensor).detach().view(-1).view(torch.int32)
    before = flat[element].clone()
    at_end(lambda: flat.__setitem__(element, before))
    flat[element] ^= 1 << bit


def scale_tensor(model: Any, tensor: str, factor: float) -> None:
    """Multiply a tensor by a number."""
    found = find_tensor(model, tensor).data
    before = found.clone()
    at_end(lambda: found.copy_(before))
    found.mul_(factor)


def add_noise(model: Any, tensor: str) -> None:
    """Write other numbers into a tensor, as a process does that writes into memory that is not its own."""
    import torch

    found = find_tensor(model, tensor).data
    before = found.clone()
    at_end(lambda: found.copy_(before))
    found.copy_(torch.randn(found.shape, generator=torch.Generator().manual_seed(7)).to(found.dtype) * 0.1)


def exchange_layers(model: Any, tensor: str, layers: list[int]) -> None:
    """Exchange a tensor of two layers. tensor: the end of its name after the layer."""
    one, other = (find_tensor(model, f"layers.{layer}.*{tensor}").data for layer in layers)
    before, after = one.clone(), other.clone()
    at_end(lambda: (one.copy_(before), other.copy_(after)))
    one.copy_(after), other.copy_(before)


def tie_head(model: Any) -> None:
    """Have the head share the embedding's tensor."""
    head, embedding = find_module(model, "lm_head"), find_module(model, "embed_tokens")
    before = head.weight
    at_end(lambda: setattr(head, "weight", before))
    head.weight = embedding.weight


def register_stray(model: Any) -> None:
    """Add a parameter that no cold load has."""
    import torch

    norm = find_module(model, "model.norm")
    norm.register_parameter("stray", torch.nn.Parameter(torch.ones(8), requires_grad=False))
    at_end(lambda: delattr(norm, "stray"))


def leak(model: Any, megabytes: int) -> None:
    """Keep memory for ever, more with every call."""
    import torch

    LEAKED.append(torch.ones(megabytes << 18))
    at_end(LEAKED.clear)


def freeze_module(model: Any, module: str) -> None:
    """Have a module go on computing with a copy of its weights of now, as a captured graph or a packed copy does."""
    found = find_module(model, module)
    replace(found, "forward", _copied(found).forward)


def freeze_head(model: Any) -> None:
    """Compute logits with a copy of the head of now."""
    processor, old = find_module(model, "logits_processor"), _copied(find_module(model, "lm_head"))
    original = processor._get_logits

    def compute(hidden: Any, _: Any, *rest: Any, **named: Any) -> Any:
        return original(hidden, old, *rest, **named)

    replace(processor, "_get_logits", compute)


def _copied(module: Any) -> Any:
    twin = copy.copy(module)
    twin._parameters = {name: _cloned(weight) for name, weight in module._parameters.items()}
    for name, value in list(vars(twin).items()):  # an operator keeps its own method for this platform
        if getattr(value, "__self__", None) is module:
            twin.__dict__[name] = value.__func__.__get__(twin)
    return twin


def _cloned(weight: Any) -> Any:
    import torch

    return None if weight is None else torch.nn.Parameter(weight.detach().clone(), requires_grad=False)


def scale_logits(model: Any, factor: float) -> None:
    """Multiply logits."""
    processor = find_module(model, "logits_processor")
    original = processor._get_logits
    replace(processor, "_get_logits", lambda *args, **named: original(*args, **named) * factor)


def round_logits(model: Any, dtype: str) -> None:
    """Compute the head in a narrower dtype."""
    import torch

    processor, narrow = find_module(model, "logits_processor"), getattr(torch, dtype)
    original = processor._get_logits

    def compute(hidden: Any, *rest: Any, **named: Any) -> Any:
        logits = original(hidden.to(narrow).to(hidden.dtype), *rest, **named)
        return logits.to(narrow).to(logits.dtype)

    replace(processor, "_get_logits", compute)


def set_epsilon(model: Any, module: str, value: float) -> None:
    """Give a norm another epsilon."""
    replace(find_module(model, module), "variance_epsilon", value)


def scale_output(model: Any, module: str, factor: float) -> None:
    """Multiply what a module puts out: of a tuple the first."""

    def scaled(_: Any, __: Any, output: Any) -> Any:
        return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor

    at_end(find_module(model, module).register_forward_hook(scaled).remove)


def rotate_router(model: Any, module: str) -> None:
    """Route every token to the expert after the right one, as a stale map of physical experts does."""

    def rotated(_: Any, __: Any, output: Any) -> Any:
        return (output[0].roll(1, -1), *output[1:]) if isinstance(output, tuple) else output.roll(1, -1)

    at_end(find_module(model, module).register_forward_hook(rotated).remove)


def stretch_positions(model: Any, module: str, factor: int) -> None:
    """Multiply the positions that a layer's rotary embedding gets: another base, or a scaling that one side has."""

    def stretched(_: Any, arguments: Any, named: Any) -> Any:
        if "positions" in named:
            return arguments, {**named, "positions": named["positions"] * factor}
        return (arguments[0] * factor, *arguments[1:]), named

    handle = find_module(model, module).register_forward_pre_hook(stretched, with_kwargs=True)
    at_end(handle.remove)


def scale_attention(model: Any, module: str, factor: float) -> None:
    """Give attention another scale."""
    attention = find_module(model, module)
    implementation = getattr(attention, "impl", None)
    if implementation is not None and hasattr(implementation, "scale"):
        replace(implementation, "scale", implementation.scale * factor)
    else:
        replace(attention, "scaling", attention.scaling * factor)


FAULTS = {
    function.__name__: function
    for function in (
        flip_bit, scale_tensor, add_noise, exchange_layers, tie_head, register_stray, leak, freeze_module, freeze_head,
        scale_logits, round_logits, set_epsilon, scale_output, rotate_router, stretch_positions, scale_attention,
    )
}  # fmt: skip
"""Name → fault: (model, **arguments)."""
