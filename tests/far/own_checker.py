"""Runs in SGLang's interpreter: its weight checker's idea of equality, on the CPU, where it asks for CUDA by habit."""

from __future__ import annotations


def equal(words: list[int], others: list[int]) -> bool:
    """Return whether SGLang takes two int32 tensors for the same weights."""
    import torch
    from sglang.srt.utils.weight_checker_comparator import RawComparable, compare_weights

    torch.Tensor.cuda = lambda self, *_, **__: self
    one, other = (RawComparable(torch.tensor(each, dtype=torch.int32)) for each in (words, others))
    return bool(compare_weights(one, other).equal)


VERBS = {"equal": equal}
