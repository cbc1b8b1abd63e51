"""Makes evidence of a source that was listed, wherever it lies; open.py says which source a target names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.value_reader import ValueReader
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptcheck.checkpoint.megatron.folders import Tree
    from ckptcheck.checkpoint.megatron.megatron import Megatron

REMOTE_JOBS = 16
"""Files that are read at a time where they are not on this machine: each read waits for the network."""


class EvidenceSettings(TypedDict, total=False):
    """The settings of evidence that the constructors of `Checkpoint` and `Megatron` take."""

    options: ScanOptions
    value_reader: ValueReader | None
    jobs: int | None


def open_megatron(tree: Tree, settings: EvidenceSettings, suggest: Callable[[], CkptcheckError | None]) -> Megatron:
    """Open a Megatron run, one of its iterations, or a folder of torch.distributed.checkpoint.

    suggest: says which checkpoints lie below, where there is none here. Raises CkptcheckError where there is nothing to check.
    """
    from ckptcheck.checkpoint.megatron.megatron import Megatron

    megatron = Megatron(tree, **settings)
    has_links = megatron.outside_links or any(file.outside_link for file in megatron.files.values())
    if megatron.form == "empty" and megatron.tracker is None and not has_links:
        raise suggest() or CkptcheckError(
            f"{tree.target} holds no checkpoint", hint="name the folder of a run or of an iteration"
        )
    return megatron


def require_safetensors(source: Source) -> None:
    """Refuse a source without safetensors files: a report about nothing would pass vacuously."""
    target = source.target
    if not has_safetensors(source):
        weights = [name for name in source.files if name.endswith((".bin", ".pt", ".pth"))]
        gguf = sorted(name for name in source.files if name.endswith(".gguf"))
        if gguf and not weights:
            raise explain_gguf(target, target.removeprefix("hf://"), gguf[0])
        if weights:
            raise CkptcheckError(
                f"{target} holds no safetensors file, only {weights[0]}",
                hint="convert it to safetensors first: pickles are not read",
            )
        raise CkptcheckError(f"{target} holds no safetensors file", hint="name the folder that holds them")


def has_safetensors(source: Source) -> bool:
    """Whether a source has a safetensors file, or an index of some."""
    return any(name.endswith((".safetensors", ".safetensors.index.json")) for name in source.files)


def explain_gguf(target: str, folder: str, file: str) -> CkptcheckError:
    """Say that the target is a GGUF model, with the command that converts it."""
    load = f'AutoModelForCausalLM.from_pretrained("{folder}", gguf_file="{file}").save_pretrained("converted")'
    return CkptcheckError(
        f"{target} is a model in GGUF, llama.cpp's format, and ckptcheck checks safetensors",
        hint=f"convert it: python -c 'from transformers import AutoModelForCausalLM; {load}'",
    )
