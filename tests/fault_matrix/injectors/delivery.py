"""Faults of a transport: what arrives at the model's own load_weights is not what was sent. Runs in the engine's Python.

Each takes the load that is under way, and the (name, tensor) of one bucket; it returns what `load.deliver` returns.
"""

from __future__ import annotations

from typing import Any

Stream = "list[tuple[str, Any]]"


def drop_bucket(load: Any, stream: Any, place: int) -> Any:
    """Lose one bucket. place: its number from 0, -1 for the last."""
    return load.deliver([] if load.is_bucket(place) else stream)


def drop_last_of_bucket(load: Any, stream: Any) -> Any:
    """Lose the last tensor of every bucket."""
    return load.deliver(stream[:-1] if len(stream) > 1 else stream)


def drop_tensor(load: Any, stream: Any, name: str) -> Any:
    """Lose one tensor."""
    return load.deliver([(own, tensor) for own, tensor in stream if own != name])


def repeat_bucket(load: Any, stream: Any, place: int) -> Any:
    """Deliver the bucket before once more in the place of one: a slot of a ring buffer that was read twice."""
    if load.is_bucket(place + 1):
        stream = load.kept.pop("before")
    elif load.is_bucket(place):
        load.kept["before"] = [(own, tensor.clone()) for own, tensor in stream]
    return load.deliver(stream)


def truncate_bucket(load: Any, stream: Any, place: int, part: float) -> Any:
    """Deliver the end of a bucket as zeros. part: of its last tensor's elements."""
    if load.is_bucket(place):
        name, tensor = stream[-1]
        cut = tensor.clone()
        cut.view(-1)[int(cut.numel() * (1 - part)) :] = 0
        stream = [*stream[:-1], (name, cut)]
    return load.deliver(stream)


def flip_bit(load: Any, stream: Any, name: str, element: int, bit: int) -> Any:
    """Flip one bit of one element."""
    import torch

    def flipped(tensor: Any) -> Any:
        changed = tensor.clone()
        changed.view(-1).view(torch.int32)[element] ^= -(2**31) if bit == 31 else 1 << bit
        return changed

    return load.deliver([(own, flipped(tensor) if own == name else tensor) for own, tensor in stream])


def fill(load: Any, stream: Any, name: str, value: float) -> Any:
    """Deliver one value in every element of a tensor."""
    import torch

    return load.deliver([(own, torch.full_like(each, value) if own == name else each) for own, each in stream])


def exchange(load: Any, stream: Any, names: list[str]) -> Any:
    """Deliver the values of two tensors of a bucket under each other's name; they come one after the other if need be."""
    wanted = {names[0]: names[1], names[1]: names[0]}
    found = load.kept.setdefault("exchanged", {})
    found.update({own: tensor.clone() for own, tensor in stream if own in wanted})
    rest = [(own, tensor) for own, tensor in stream if own not in wanted]
    if len(found) == 2:
        rest += [(wanted[own], tensor) for own, tensor in found.items()]
        load.kept.pop("exchanged")
    return load.deliver(rest)


def rotate_payload(load: Any, stream: Any) -> Any:
    """Deliver the payloads of a bucket's equally shaped tensors in another order than their names."""
    shapes: dict[Any, list[int]] = {}
    for number, (_, tensor) in enumerate(stream):
        shapes.setdefault(tuple(tensor.shape), []).append(number)
    found = list(stream)
    for places in shapes.values():
        for place, source in zip(places, places[1:] + places[:1], strict=True):
            found[place] = (stream[place][0], stream[source][1].clone())
    return load.deliver(found)


def offset(load: Any, stream: Any, elements: int) -> Any:
    """Cut the tensors of a bucket out of its buffer some elements too far on."""
    import torch

    flat = torch.cat([tensor.reshape(-1) for _, tensor in stream]).roll(-elements)
    found, begin = [], 0
    for name, tensor in stream:
        found.append((name, flat[begin : begin + tensor.numel()].reshape(tensor.shape).clone()))
        begin += tensor.numel()
    return load.deliver(found)


def cast(load: Any, stream: Any, dtype: str, names: str = "") -> Any:
    """Round on the wire. names: what the names that are rounded contain."""
    import torch

    narrow = getattr(torch, dtype)
    return load.deliver([(own, each.to(narrow).to(each.dtype) if names in own else each) for own, each in stream])


def reverse_bytes(load: Any, stream: Any, name: str) -> Any:
    """Deliver the bytes of each element in reverse order."""
    import torch

    def reversed_bytes(tensor: Any) -> Any:
        size = tensor.element_size()
        return (
            tensor.contiguous().view(-1).view(torch.uint8).view(-1, size).flip(1).reshape(-1).view(tensor.dtype)
        ).reshape(tensor.shape)

    return load.deliver([(own, reversed_bytes(each) if own == name else each) for own, each in stream])


def send_first_again(load: Any, stream: Any, names: str = "") -> Any:
    """From the second sync on, deliver the values of the first. names: what the names contain of which this is done."""
    first = load.kept.setdefault("first", {})
    if load.sync == 1:
        first.update({own: tensor.clone() for own, tensor in stream if names in own})
    return load.deliver([(own, first.get(own, tensor)) for own, tensor in stream])


def end_with_old_copy(load: Any, stream: Any, name: str) -> Any:
    """From the second sync on, deliver a tensor twice: last the value of the first sync."""
    if load.sync == 1:
        load.kept.update({own: tensor.clone() for own, tensor in stream if own == name})
    again = [(name, load.kept[name])] if load.sync > 1 and any(own == name for own, _ in stream) else []
    return load.deliver([*stream, *again])


def deliver_nothing(load: Any, stream: Any) -> Any:
    """Deliver nothing, and say that all went well."""
    return load.deliver([])


def transpose(load: Any, stream: Any, name: str) -> Any:
    """Deliver a square matrix transposed."""
    return load.deliver([(own, each.t().contiguous() if own == name else each) for own, each in stream])


FAULTS = {
    function.__name__: function
    for function in (
        drop_bucket, drop_last_of_bucket, drop_tensor, repeat_bucket, truncate_bucket, flip_bit, fill, exchange, rotate_payload,
        offset, cast, reverse_bytes, send_first_again, end_with_old_copy, deliver_nothing, transpose,
    )
}  # fmt: skip
"""Name → fault: (load, stream, **arguments) → what the model's load_weights returns."""
