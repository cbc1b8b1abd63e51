"""Opens the target that the user names: a Hugging Face checkpoint or a Megatron run, on disk, in an object store or on the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas.target import is_disk_delta, split_chain
from ckptcheck.checkpoint.hub_address import HUB
from ckptcheck.checkpoint.megatron.folders import DiskTree
from ckptcheck.checkpoint.objects.address import is_object_address
from ckptcheck.checkpoint.open_source import (
    REMOTE_JOBS,
    EvidenceSettings,
    explain_gguf,
    has_safetensors,
    open_megatron,
    refuse_file,
    require_safetensors,
)
from ckptcheck.checkpoint.scan_options import DEFAULT_OPTIONS
from ckptcheck.checkpoint.source import Folder
from ckptcheck.checkpoint.targets import is_path_pattern, normalize_target, suggest_checkpoints
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home, path_exists

if TYPE_CHECKING:
    from typing import Unpack

    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.runners.runner import Runner

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", re.ASCII)
"""The name of a repository on the Hub. None begins with a dot: ./model and ../model are always paths."""


def open_target(
    target: str, *, runner: Runner | None = None, **settings: Unpack[EvidenceSettings]
) -> Checkpoint | Megatron:
    """Open any target of `open_checkpoint`, a Megatron run, one of its iterations, or a torch.distributed.checkpoint folder.

    runner: where to read the bytes; each node of a Ray cluster may have other files of the target on its disk.
    Raises the exceptions of `open_checkpoint`.
    """
    target = normalize_target(target)
    if runner is not None:
        from ckptcheck.checkpoint.objects.open import open_nodes

        if (opened := open_nodes(target, runner, settings)) is not None:
            return opened
    if is_remote_address(target) and split_chain(target) is not None:
        return open_checkpoint(target, **settings)
    if is_object_address(target):
        from ckptcheck.checkpoint.objects.open import open_objects

        return open_objects(target, settings)
    path = Path(expand_home(target))
    if target and not target.startswith(HUB) and _is_megatron(path):
        tree = DiskTree(path, target, follow_links=_follows_links(settings))
        return open_megatron(tree, settings, lambda: suggest_checkpoints(target, path))
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

    A folder or a file may lie in an object store: ``s3://bucket/folder``. Raises CkptcheckError when the target holds nothing to
    check, EvidenceError when the Hub or the object store cannot be read.
    """
    target = normalize_target(target)
    if (parts := split_chain(target)) is not None:
        from ckptcheck.checkpoint.deltas.open import open_chain

        return open_chain(target, parts, open_checkpoint, **settings)
    if target.startswith(HUB):
        return _remote(target, target.removeprefix(HUB), settings)
    if is_object_address(target):
        from ckptcheck.checkpoint.objects.open import open_objects

        opened = open_objects(target, settings)
        if not isinstance(opened, Checkpoint):
            raise _refuse_megatron(target)
        return opened
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
        if path_exists(path) or path.is_symlink():
            raise CkptcheckError(f"{target} is neither a folder nor a file that can be read")
    except OSError as error:
        raise CkptcheckError(f"cannot open {target}: {error.strerror or error}") from error
    if REPOSITORY.fullmatch(target):
        return _remote(target, target, settings)
    hint = "name a folder, a .safetensors file, its index, or hf://org/name for the Hub"
    if is_path_pattern(target):
        hint = "this command takes one target and no pattern: name a folder, or one file"
    raise CkptcheckError(f"{target} does not exist", hint=hint)


def _folder(target: str, path: Path, settings: EvidenceSettings) -> Checkpoint:
    if _is_megatron(path):
        raise _refuse_megatron(target)
    source = Folder(path, target, templates=True, follow_links=_follows_links(settings))
    if not has_safetensors(source) and (error := suggest_checkpoints(target, path)) is not None:
        raise error
    if not source.files:
        raise CkptcheckError(
            f"{target} holds no file that can be checked", hint="name the folder that holds the .safetensors files"
        )
    require_safetensors(source)
    if is_disk_delta(source):
        raise CkptcheckError(
            f"{target} is a delta: it holds what changed, and not the weights",
            hint=f"name its base as well: BASE+{target}",
        )
    return Checkpoint(source, **settings)


def _refuse_megatron(target: str) -> CkptcheckError:
    return CkptcheckError(
        f"{target} is a Megatron or torch.distributed.checkpoint folder, and a Hugging Face checkpoint is needed here",
        hint="ckptcheck scan checks it as it is",
    )


def _file(target: str, path: Path, settings: EvidenceSettings) -> Checkpoint:
    if path.name.endswith(".index.json"):
        folder = Folder(path.parent, target, templates=True, follow_links=_follows_links(settings))
        return Checkpoint(folder, index_file=path.name, **settings)
    if path.suffix == ".safetensors":
        folder = Folder(path.parent, target, only=frozenset({path.name}), follow_links=_follows_links(settings))
        return Checkpoint(folder, single=True, **settings)
    if path.suffix == ".gguf":
        raise explain_gguf(target, str(path.parent), path.name)
    raise refuse_file(target, path.name)


def _follows_links(settings: EvidenceSettings) -> bool:
    return settings.get("options", DEFAULT_OPTIONS).follow_links


def _remote(target: str, repository: str, settings: EvidenceSettings) -> Checkpoint:
    from ckptcheck.checkpoint.hub import Repository

    name, _, revision = repository.partition("@")
    source = Repository(name, revision or None, target)
    require_safetensors(source)
    settings["jobs"] = settings.get("jobs") or REMOTE_JOBS
    return Checkpoint(source, **settings)
