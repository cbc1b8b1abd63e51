"""Finds what is wrong with a checkpoint by the answers of consumers' own loaders, for the rule DRY001."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load import DryLoad
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Problem, Skip
from ckptcheck.text.formatting import count, join_truncated

ENGINES = ("vLLM", "SGLang")
"""Consumers that leave unfilled parameters with whatever the memory held; transformers initialises them at random."""
OF_SCALES = re.compile(r"[._](scale(_2|_inv)?|global_scale|qweight|qzeros|scales|g_idx|weight_packed|weight_shape)$")
"""Parameters and tensors that only quantized modules have."""


@remembered
def dry_load(ckpt: Checkpoint, name: str) -> DryLoad:
    """Load a checkpoint with a consumer's own loader. Raises Skip if that is impossible for this checkpoint."""
    if ckpt.is_adapter or ckpt.is_single_shard:
        raise Skip("a dry load needs a whole model: name its folder")
    loader = next(loader for loader in ckpt.options.dry_loaders if loader.name == name)
    return loader.load(ckpt)


def find_answer(ckpt: Checkpoint, name: str) -> DryLoad | None:
    """Return a consumer's answer on names and shapes; None if the user did not request it, or if the load failed earlier."""
    if all(loader.name != name for loader in ckpt.options.dry_loaders):
        return None
    try:
        load = dry_load(ckpt, name)
    except Skip:
        return None
    return None if load.unasked or load.refused else load


def find_load_problems(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield what is wrong with a checkpoint for each requested consumer.

    A consumer that cannot be asked does not hide the answers of the others, and makes the report incomplete: the user named it.
    """
    failed: list[str] = []
    for loader in ckpt.options.dry_loaders:
        try:
            load = dry_load(ckpt, loader.name)
        except EvidenceError as error:
            failed.append(error.message)
            continue
        if load.unasked:
            failed.append(f"{load.consumer} could not be asked: {load.unasked}")
        yield from describe_load(ckpt, loader.name, load)
    if failed:
        raise EvidenceError("; ".join(failed))


def describe_load(ckpt: Checkpoint, name: str, load: DryLoad) -> Iterator[Problem]:
    """Yield what is wrong with a checkpoint for one consumer."""
    file = "config.json" if "config.json" in ckpt.files else None
    model = load.model or "a model"
    filler = "whatever its memory held" if load.consumer.startswith(ENGINES) else "random numbers"
    if load.refused:
        yield Problem(
            f"{load.consumer} refuses to load it{f' as {load.model}' if load.model else ''}: {load.refused}",
            file=file,
            hint=f"a job would fail the same way; if this machine is the cause, name the job's Python: --dry-load {name}=PYTHON",
        )
    if load.misshapen:
        key, stored, own = load.misshapen[0]
        yield Problem(
            f"{load.consumer} builds {key} of {model} as {list(own)}, and {list(stored)} is stored"
            + _count_others(load.misshapen_count, "tensor has another shape", "tensors have other shapes"),
            file=ckpt.tensor_to_file.get(key, file),
            key=key,
            hint="it refuses the checkpoint; convert it again, with the config of this model",
            names=tuple(name for name, _, _ in load.misshapen),
        )
    if load.unfilled:
        remedy = "compare with the stored tensors that it has no place for" if load.left_out else "export again"
        if all(map(OF_SCALES.search, load.unfilled)):
            remedy = "add these modules to the ignore list if they are not to be quantized, else quantize again"
        yield Problem(
            f"{load.consumer} builds {model} with {count(load.parameters, 'parameter')}, and nothing stored fills "
            f"{_join(load.unfilled, load.unfilled_count)}",
            file=file,
            key=load.unfilled[0],
            hint=f"{remedy}; until then it computes with {filler} there",
            names=load.unfilled,
        )
    if load.partly:
        key, filled, size = load.partly[0]
        yield Problem(
            f"in {load.consumer}, the stored tensors fill only {filled:,} of {size:,} elements of {key} ({model})"
            + _count_others(load.partly_count, "parameter is filled in part", "parameters are filled in part"),
            file=file,
            key=key,
            hint=f"a part of a fused weight is missing or too small; {filler}, or zeros, is in the rest",
            names=tuple(name for name, _, _ in load.partly),
        )
    if load.at_zero:
        yield Problem(
            f"{load.consumer} leaves zeros in {_join(load.at_zero, load.at_zero_count)} of {model}: no layer has such a bias "
            "stored whole",
            file=file,
            key=load.at_zero[0],
            hint="ignore this if the model was trained without such biases; else export again",
            severity="warning",
            names=load.at_zero,
        )
    if load.left_out:
        yield Problem(
            f"{load.consumer} has no place in {model} for {_join(load.left_out, load.left_out_count)}, and leaves "
            f"{'it' if load.left_out_count == 1 else 'them'} out",
            file=ckpt.tensor_to_file.get(load.left_out[0], file),
            key=load.left_out[0],
            hint="remove these modules from the ignore list, or store them unquantized"
            if all(map(OF_SCALES.search, load.left_out))
            else "compare the names with those that the model saves itself",
            severity="warning",
            names=load.left_out,
        )


def _count_others(number: int, one: str, several: str) -> str:
    """Say how many more there are beside the one in a message; "" if there are none."""
    return "" if number < 2 else f"; {number - 1:,} more {one if number == 2 else several}"


def _join(names: tuple[str, ...], number: int) -> str:
    """Name the first of many names; add their number if `names` are not all."""
    return join_truncated(names) if number == len(names) else f"{number:,} tensors such as {join_truncated(names[:3])}"
