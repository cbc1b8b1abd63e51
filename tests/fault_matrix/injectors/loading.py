"""Faults of a loader: everything arrives, and something else is written. Runs in the engine's Python.

A parameter is named by the end of its name; `load.parameter` finds it. What a loader forgets is put back as it was before.
"""

from __future__ import annotations

from typing import Any


def write_to_clone(load: Any, stream: Any, parameter: str) -> Any:
    """Write a parameter into a copy that nobody computes with."""
    weight = load.parameter(parameter)
    before = weight.detach().clone()
    answer = load.deliver(stream)
    weight.data.copy_(before)
    return answer


def write_part(load: Any, stream: Any, parameter: str, begin: float, end: float) -> Any:
    """Leave some rows of a parameter as they were. begin, end: parts of its elements."""
    weight = load.parameter(parameter)
    before = weight.detach().clone()
    answer = load.deliver(stream)
    kept = slice(int(begin * weight.numel()), int(end * weight.numel()))
    weight.data.view(-1)[kept] = before.view(-1)[kept]
    return answer


def swallow_exception(load: Any, stream: Any, name: str) -> Any:
    """Leave out a tensor and all after it in its bucket, as a loader does that catches its own exception."""
    names = [own for own, _ in stream]
    return load.deliver(stream[: names.index(name)] if name in names else stream)


def skip_names(load: Any, stream: Any, names: str) -> Any:
    """Skip every tensor whose name contains this."""
    return load.deliver([(own, tensor) for own, tensor in stream if names not in own])


def rename(load: Any, stream: Any, names: dict[str, str]) -> Any:
    """Load tensors as others: whole names, or parts of names that are unique."""

    def renamed(own: str) -> str:
        return next((own.replace(old, new) for old, new in names.items() if old in own), own)

    return load.deliver([(renamed(own), tensor) for own, tensor in stream])


def exchange_rows(load: Any, stream: Any, parameter: str, ranges: list[float]) -> Any:
    """Write two ranges of a parameter in each other's place. ranges: their begin, and the end of the second, as parts."""
    weight = load.parameter(parameter)
    answer = load.deliver(stream)
    begin, middle, end = (int(part * len(weight)) for part in ranges)
    rows = weight.detach()[begin:end].clone()
    half = middle - begin
    weight.data[begin:end] = rows.roll(-half, 0)
    return answer


def accumulate(load: Any, stream: Any, parameter: str) -> Any:
    """Add what was loaded to what was there: a loader for deltas that gets whole weights."""
    weight = load.parameter(parameter)
    before = weight.detach().clone()
    answer = load.deliver(stream)
    if load.last:
        weight.data.add_(before)
    return answer


def round_parameter(load: Any, stream: Any, parameter: str, dtype: str) -> Any:
    """Load by way of a narrower dtype."""
    import torch

    weight = load.parameter(parameter)
    answer = load.deliver(stream)
    weight.data.copy_(weight.data.to(getattr(torch, dtype)))
    return answer


def rotate_experts(load: Any, stream: Any, experts: int) -> Any:
    """Load every expert as the next one."""

    def renamed(own: str) -> str:
        head, mark, rest = own.partition(".experts.")
        if not mark:
            return own
        number, _, part = rest.partition(".")
        return f"{head}.experts.{(int(number) + 1) % experts}.{part}"

    return load.deliver([(renamed(own), tensor) for own, tensor in stream])


def take_first_shard(load: Any, stream: Any, parameter: str, axis: int, rank: int) -> Any:
    """Give a rank the shard of rank 0."""
    answer = load.deliver(stream)
    if load.rank == rank:
        weight, source = load.parameter(parameter), parameter
        for own, tensor in stream:
            if own.endswith(source):
                weight.data.copy_(tensor.narrow(axis, 0, weight.shape[axis]))
    return answer


def skip_rank(load: Any, stream: Any, rank: int) -> Any:
    """Have one rank load nothing."""
    return load.deliver([] if load.rank == rank else stream)


def write_padding_short(load: Any, stream: Any, parameter: str, rows: int) -> Any:
    """Leave the last rows of a vocabulary as they were."""
    weight = load.parameter(parameter)
    before = weight.detach().clone()
    answer = load.deliver(stream)
    weight.data[-rows:] = before[-rows:]
    return answer


def replace_parameter(load: Any, stream: Any, parameter: str) -> Any:
    """Put a new tensor in the place of a parameter, as a loader does that assigns; what held the old one keeps it."""
    weight = load.parameter(parameter)
    answer = load.deliver(stream)
    if load.last:
        weight.data = weight.data.clone()
    return answer


FAULTS = {
    function.__name__: function
    for function in (
        write_to_clone, write_part, swallow_exception, skip_names, rename, exchange_rows, accumulate, round_parameter,
        rotate_experts, take_first_shard, skip_rank, write_padding_short, replace_parameter,
    )
}  # fmt: skip
"""Name → fault: (load, stream, **arguments) → what the model's load_weights returns."""
