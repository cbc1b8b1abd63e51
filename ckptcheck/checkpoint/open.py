"""Opens the target that the user names: a Hugging Face checkpoint, a Megatron run, a repository on the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.hub_address import HUB, normalize_hub_address
from ckptcheck.checkpoint.scan_options import DEFAULT_OPTIONS, ScanOptions
from ckptcheck.checkpoint.source import Folder, Source
from ckptcheck.checkpoint.targets import suggest_checkpoints
from ckptcheck.checkpoint.value_reader import ValueReader
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import expand_home

if TYPE_CHECKING:
    from typing import Unpack

    from ckptcheck.checkpoint.megatron.megatron import Megatron

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", re.ASCII)
"""The name of a repository on the Hub. None begins with a dot: ./model and ../model are always paths."""
REMOTE_JOBS = 16
"""Files on the Hub that are read at a time: each read waits for the network."""


class EvidenceSettings(TypedDict, total=False):
    """The settings of evidence that the constructors of `Checkpoint` and `Megatron` take."""

    options: ScanOptions
    value_reader: ValueReader | None
    jobs: int | None


def open_target(target: str, **settings: Unpack[EvidenceSettings]) -> Checkpoint | Megatron:
    """Open any target of `open_checkpoint`, a Megatron run, one of its iterations, or a torch.distributed.checkpoint folder.

    Raises the exceptions of `open_checkpoint`.
    """
    target = normalize_hub_address(target)
    path = Path(expand_home(target))
    if target and not target.startswith(HUB) and _is_megatron(path):
        from ckptcheck.checkpoint.megatron.megatron import Megatron

        megatron = Megatron(path, target, **settings)
        has_links = megatron.outside_links or any(file.outside_link for file in megatron.files.values())
        if megatron.form == "empty" and megatron.tracker is None and not has_links:
            raise suggest_checkpoints(target, path) or CkptcheckError(
                f"{target} holds no checkpoint", hint="name the folder of a run or of an iteration"
            )
        return megatron
    return open_checkpoint(target, **settings)


def _is_megatron(path: Path) -> bool:
    """Whether a folder holds a Megatron checkpoint and no Hugging Face checkpoint."""
    from ckptcheck.checkpoint.megatron.folders import is_megatron_folder

    try:
        return path.is_dir() and is_megatron_folder(path) and not any(path.glob("*.safetensors*"))
    except OSError:
        return False


def open_checkpoint(target: str, **settings: Unpack[EvidenceSettings]) -> Checkpoint:
    """Open a folder, a .safetensors file, an index file, ``hf://org/name[@revision]``, its page's address, or a bare ``org/name``.

    Raises CkptcheckError when the target holds nothing to check, EvidenceError when the Hub cannot be read.
    """
    target = normalize_hub_address(target)
    if target.startswith(HUB):
        return _remote(target, target.removeprefix(HUB), settings)
    if not target:
        raise CkptcheckError(
            "the target has no name", hint="name a folder, a .safetensors file, its index, or hf://org/name"
        )
    path = Path(expand_home(target))
    try:
        if path.is_dir():
            return _folder(target, path, settings)
        if path.is_file():
            return _file(target, path, settings)
        if path.exists() or path.is_symlink():
            raise CkptcheckError(f"{target} is neither a folder nor a file that can be read")
    except OSError as error:
        raise CkptcheckError(f"cannot open {target}: {error.strerror or error}") from error
    if REPOSITORY.fullmatch(target):
        return _remote(target, target, settings)
    raise CkptcheckError(
        f"{target} does not exist", hint="name a folder, a .safetensors file, its index, or hf://org/name for the Hub"
    )


def _folder(target: str, path: Path, settings: EvidenceSettings) -> Checkpoint:
    if _is_megatron(path):
        raise CkptcheckError(
            f"{target} is a Megatron or torch.distributed.checkpoint folder, and a Hugging Face checkpoint is needed here",
            hint="ckptcheck scan checks it as it is",
        )
    source = Folder(path, target, templates=True, follow_links=_follows_links(settings))
    if not _has_safetensors(source) and (error := suggest_checkpoints(target, path)) is not None:
        raise error
    if not source.files:
        raise CkptcheckError(
            f"{target} holds no file that can be checked", hint="name the folder that holds the .safetensors files"
        )
    _require_safetensors(source)
    return Checkpoint(source, **settings)


def _require_safetensors(source: Source) -> None:
    """Refuse a source without safetensors files: a report about nothing would pass vacuously."""
    target = source.target
    if not _has_safetensors(source):
        weights = [name for name in source.files if name.endswith((".bin", ".pt", ".pth"))]
        gguf = sorted(name for name in source.files if name.endswith(".gguf"))
        if gguf and not weights:
            raise _explain_gguf(target, target.removeprefix("hf://"), gguf[0])
        if weights:
            raise CkptcheckError(
                f"{target} holds no safetensors file, only {weights[0]}",
                hint="convert it to safetensors first: pickles are not read",
            )
        raise CkptcheckError(f"{target} holds no safetensors file", hint="name the folder that holds them")


def _has_safetensors(source: Source) -> bool:
    return any(name.endswith((".safetensors", ".safetensors.index.json")) for name in source.files)


def _explain_gguf(target: str, folder: str, file: str) -> CkptcheckError:
    """Say that the target is a GGUF model, with the command that converts it."""
    load = f'AutoModelForCausalLM.from_pretrained("{folder}", gguf_file="{file}").save_pretrained("converted")'
    return CkptcheckError(
        f"{target} is a model in GGUF, llama.cpp's format, and ckptcheck checks safetensors",
        hint=f"convert it: python -c 'from transformers import AutoModelForCausalLM; {load}'",
    )


def _file(target: str, path: Path, settings: EvidenceSettings) -> Checkpoint:
    if path.name.endswith(".index.json"):
        folder = Folder(path.parent, target, templates=True, follow_links=_follows_links(settings))
        return Checkpoint(folder, index_file=path.name, **settings)
    if path.suffix == ".safetensors":
        folder = Folder(path.parent, target, only=frozenset({path.name}), follow_links=_follows_links(settings))
        return Checkpoint(folder, single=True, **settings)
    if path.suffix == ".gguf":
        raise _explain_gguf(target, str(path.parent), path.name)
    raise CkptcheckError(
        f"{target} is neither a .safetensors file nor an index (….safetensors.index.json)",
        hint="name the folder instead",
    )


def _follows_links(settings: EvidenceSettings) -> bool:
    return settings.get("options", DEFAULT_OPTIONS).follow_links


def _remote(target: str, repository: str, settings: EvidenceSettings) -> Checkpoint:
    from ckptcheck.checkpoint.hub import Repository

    name, _, revision = repository.partition("@")
    source = Repository(name, revision or None, target)
    _require_safetensors(source)
    settings["jobs"] = settings.get("jobs") or REMOTE_JOBS
    return Checkpoint(source, **settings)
