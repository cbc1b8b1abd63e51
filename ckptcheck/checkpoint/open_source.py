"""Turns a listed source into evidence, wherever it lies; open.py finds the source of a target."""

from __future__ import annotations

import re
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
"""Files that are read at a time from a remote source, because each read waits for the network."""
PICKLES = re.compile(r"\.(bin|pt|pth|ckpt|pkl)$")
"""Names of files that torch.save writes."""
STATE_OF_TRAINING = re.compile(r"optimizer|scheduler|rng_state|random_states|scaler|sampler|training_args")
"""Beginnings of the names of files in which trainers save something other than weights."""
OTHER_FORMATS = {".h5": "Keras or TensorFlow", ".keras": "Keras", ".msgpack": "Flax", ".onnx": "ONNX"}
"""Suffix → the framework whose weights have it."""


class EvidenceSettings(TypedDict, total=False):
    """The settings of evidence that the constructors of `Checkpoint` and `Megatron` take."""

    options: ScanOptions
    value_reader: ValueReader | None
    jobs: int | None


def open_megatron(tree: Tree, settings: EvidenceSettings, suggest: Callable[[], CkptcheckError | None]) -> Megatron:
    """Open a Megatron run, one of its iterations, or a folder of torch.distributed.checkpoint.

    suggest: names the checkpoints below, if there is none here. Raises CkptcheckError if there is nothing to check.
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
        pickles = sorted(name for name in source.files if PICKLES.search(name))
        # leave out optimizer state and the like, which the user hardly means
        weights = [name for name in pickles if not STATE_OF_TRAINING.match(name)] or pickles
        gguf = sorted(name for name in source.files if name.endswith(".gguf"))
        if gguf and not weights:
            raise explain_gguf(target, target.removeprefix("hf://"), gguf[0])
        if weights:
            more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
            raise CkptcheckError(
                f"{target} holds no safetensors file, only {weights[0]}{more}",
                hint="convert it to safetensors first: pickles are not read",
            )
        raise CkptcheckError(f"{target} holds no safetensors file", hint="name the folder that holds them")


def refuse_file(target: str, name: str) -> CkptcheckError:
    """Explain that a file is no checkpoint, and what it is if its name shows it."""
    if PICKLES.search(name):
        return CkptcheckError(
            f"{target} is a file of PyTorch, and ckptcheck checks safetensors",
            hint="convert it to safetensors first: pickles are not read",
        )
    if name.endswith(".distcp"):
        return CkptcheckError(
            f"{target} is one file of torch.distributed.checkpoint",
            hint="name its folder, which says what the file holds",
        )
    framework = next((named for suffix, named in OTHER_FORMATS.items() if name.endswith(suffix)), None)
    if framework is not None:
        return CkptcheckError(
            f"{target} is a file of {framework}, and ckptcheck checks safetensors",
            hint="name the folder or the .safetensors file that holds the weights",
        )
    return CkptcheckError(
        f"{target} is neither a .safetensors file nor an index (….safetensors.index.json)",
        hint="name the folder instead",
    )


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
