"""Says in words how a tensor differs from the one that it should be: rounded, scaled, empty, transposed, in another order."""

from __future__ import annotations

from typing import Any

CLOSE = 1e-3
"""Largest relative spread of the ratios of two tensors that are multiples of each other: bfloat16 rounds to 2^-9."""


def describe_difference(ours: Any, theirs: Any) -> str:
    """Return how `theirs` differs from `ours`, in a few words; "" where both are equal. Both are torch tensors.

    >>> import torch
    >>> describe_difference(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]))
    'multiplied by 0.5'
    """
    import torch

    with torch.no_grad():
        if ours.shape != theirs.shape:
            return f"of shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}"
        ours, theirs = ours.detach(), theirs.detach().to(ours.device)
        if ours.dtype == theirs.dtype and torch.equal(ours, theirs):
            return ""
        if not ours.is_floating_point() or not theirs.is_floating_point():
            return "other values"
        one, other = ours.float(), theirs.float()
        if not other.isfinite().all():
            number = int((~other.isfinite()).sum())
            kind = "NaN" if other.isnan().any() else "infinite"
            return f"{kind} in {number:,} of {other.numel():,} numbers"
        if not other.any():
            return "all zero"
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            if torch.equal(ours.to(dtype).float(), other):
                return f"rounded to {str(dtype).removeprefix('torch.')}"
        return _describe_numbers(one, other)


def _describe_numbers(ours: Any, theirs: Any) -> str:
    """Describe the difference of two tensors of finite numbers in float32."""
    import torch

    length = float((ours * ours).sum())
    factor = float((ours * theirs).sum()) / length if length else 0.0
    if (
        factor
        and float((theirs - factor * ours).norm()) <= CLOSE * abs(factor) * length**0.5
        and abs(factor - 1) > CLOSE
    ):
        return f"multiplied by {factor:.4g}"
    if ours.dim() == 2 and ours.shape[0] == ours.shape[1] and torch.equal(ours.T, theirs):
        return "transposed"
    if ours.dim() >= 1 and ours.shape[0] > 1:
        rows = (ours != theirs).flatten(1).any(1) if ours.dim() > 1 else ours != theirs
        number, total = int(rows.sum()), ours.shape[0]
        if number == total and ours.dim() > 1 and torch.equal(_sort_rows(ours), _sort_rows(theirs)):
            return "its rows in another order"
        if number < total:
            places = rows.nonzero().flatten()
            first, last = int(places[0]), int(places[-1])
            where = f", from {first} to {last}" if last - first + 1 == number else ""
            return f"other values in {number:,} of {total:,} rows{where}"
    distance = float((theirs - ours).norm()) / length**0.5 if length else float("inf")
    return f"other values, {distance:.2g} of its size away"


def _sort_rows(tensor: Any) -> Any:
    """Return the rows in the order of what they sum to, with weights that tell columns apart."""
    import torch

    flat = tensor.flatten(1)
    keys = flat.double() @ torch.linspace(1, 2, flat.shape[1], dtype=torch.float64, device=flat.device)
    return flat[keys.argsort()]
