"""Turns what the user named into evidence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.source import Folder, Source
from ckptcheck.errors import CkptcheckError
from ckptcheck.tilde import expanded

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", re.ASCII)
"""A repository's name on the Hub. None begins with a dot: ./model and ../model are paths, whether they are there or not."""


def open_target(target: str, *, jobs: int | None = None) -> Checkpoint | Megatron:
    """Open what `open_checkpoint` opens, or a Megatron run, one of its iterations, or a torch.distributed.checkpoint folder.

    Raises as `open_checkpoint` does.
    """
    path = Path(expanded(target))
    if target and not target.startswith("hf://") and _is_megatron(path):
        from ckptcheck.checkpoint.megatron.run import Megatron

        megatron = Megatron(path, target, jobs=jobs)
        leaves = megatron.leaving or any(file.leaves for file in megatron.files.values())
        if megatron.form == "empty" and megatron.tracker is None and not leaves:
            raise CkptcheckError(f"{target} holds no checkpoint", hint="name the folder of a run or of an iteration")
        return megatron
    return open_checkpoint(target, jobs=jobs)


def _is_megatron(path: Path) -> bool:
    """Whether a folder holds a Megatron checkpoint and no Hugging Face one."""
    from ckptcheck.checkpoint.megatron.tree import is_run

    try:
        return path.is_dir() and is_run(path) and not any(path.glob("*.safetensors*"))
    except OSError:
        return False


def open_checkpoint(target: str, *, jobs: int | None = None) -> Checkpoint:
    """Open a folder, a .safetensors file, an index file, ``hf://org/name[@revision]`` or a bare ``org/name``.

    Raises CkptcheckError when there is nothing to check, EvidenceError when the Hub cannot be asked.
    """
    if target.startswith("hf://"):
        return _remote(target, target.removeprefix("hf://"), jobs)
    if not target:
        raise CkptcheckError(
            "the target has no name", hint="name a folder, a .safetensors file, its index, or hf://org/name"
        )
    path = Path(expanded(target))
    try:
        if path.is_dir():
            return _folder(target, path, jobs)
        if path.is_file():
            return _file(target, path, jobs)
        if path.exists() or path.is_symlink():
            raise CkptcheckError(f"{target} is neither a folder nor a file that can be read")
    except OSError as error:
        raise CkptcheckError(f"cannot open {target}: {error.strerror or error}") from error
    if REPOSITORY.fullmatch(target):
        return _remote(target, target, jobs)
    raise CkptcheckError(
        f"{target} does not exist", hint="name a folder, a .safetensors file, its index, or hf://org/name for the Hub"
    )


def _folder(target: str, path: Path, jobs: int | None) -> Checkpoint:
    if _is_megatron(path):
        raise CkptcheckError(
            f"{target} is a Megatron or torch.distributed.checkpoint folder, and a Hugging Face checkpoint is needed here",
            hint="ckptcheck scan checks it as it is",
        )
    source = Folder(path, target, templates=True)
    if not source.files:
        raise CkptcheckError(
            f"{target} holds no file that can be checked", hint="name the folder that holds the .safetensors files"
        )
    _require_safetensors(source)
    return Checkpoint(source, jobs=jobs)


def _require_safetensors(source: Source) -> None:
    """Refuse what holds nothing that could be checked: a report about it would pass vacuously."""
    target = source.target
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in source.files):
        weights = [name for name in source.files if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        if weights:
            raise CkptcheckError(
                f"{target} holds no safetensors file, only {weights[0]}",
                hint="convert it to safetensors first: pickles are not read",
            )
        raise CkptcheckError(f"{target} holds no safetensors file", hint="name the folder that holds them")


def _file(target: str, path: Path, jobs: int | None) -> Checkpoint:
    if path.name.endswith(".index.json"):
        return Checkpoint(Folder(path.parent, target, templates=True), index_file=path.name, jobs=jobs)
    if path.suffix == ".safetensors":
        return Checkpoint(Folder(path.parent, target, only=frozenset({path.name})), single=True, jobs=jobs)
    raise CkptcheckError(
        f"{target} is neither a .safetensors file nor an index (….safetensors.index.json)",
        hint="name the folder instead",
    )


def _remote(target: str, repository: str, jobs: int | None) -> Checkpoint:
    from ckptcheck.checkpoint.hub import Repository

    name, _, revision = repository.partition("@")
    source = Repository(name, revision or None, target)
    _require_safetensors(source)
    return Checkpoint(source, jobs=jobs or 16)
