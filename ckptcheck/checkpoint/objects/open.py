"""Opens a checkpoint, one of its files, or a Megatron run, in an object store or on the disks of a cluster's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas.target import split_chain
from ckptcheck.checkpoint.megatron.folders import is_megatron_tree
from ckptcheck.checkpoint.objects.address import ObjectAddress, parse_object_address
from ckptcheck.checkpoint.objects.find import TENSORS, find_folders
from ckptcheck.checkpoint.objects.folder import ObjectTree
from ckptcheck.checkpoint.open_source import REMOTE_JOBS, has_safetensors, open_megatron, require_safetensors
from ckptcheck.checkpoint.scan_options import DEFAULT_OPTIONS
from ckptcheck.checkpoint.targets import MOST_SEARCHED, describe_found
from ckptcheck.errors import CkptcheckError
from ckptcheck.runners.ray_cluster import Ray
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.checkpoint.open_source import EvidenceSettings
    from ckptcheck.runners.runner import Runner


def open_objects(target: str, settings: EvidenceSettings) -> Checkpoint | Megatron:
    """Open a checkpoint in an object store; the address may name its folder, a .safetensors file or its index.

    Raises CkptcheckError if there is nothing to check or a setting is missing, EvidenceError if the store cannot be read.
    """
    settings["jobs"] = settings.get("jobs") or REMOTE_JOBS
    address = parse_object_address(target)
    name = address.key.rpartition("/")[2]
    if not target.endswith("/") and name.endswith(TENSORS):
        return _open_file(ObjectTree(target, address), name, settings)
    return _open_folder(ObjectTree(target, address), settings)


def open_nodes(target: str, runner: Runner | None, settings: EvidenceSettings) -> Checkpoint | Megatron | None:
    """Open a checkpoint on the local disks of a Ray cluster's nodes; None for any other target or runner.

    Raises CkptcheckError if there is nothing to check, EvidenceError if only this machine has the files.
    """
    if not isinstance(runner, Ray) or not target or is_remote_address(target) or split_chain(target) is not None:
        return None
    from ckptcheck.checkpoint.objects.bucket_of_nodes import find_node_folder

    path = Path(expand_home(target))
    name = path.name if path.name.endswith(TENSORS) else ""
    follows = settings.get("options", DEFAULT_OPTIONS).follow_links
    nodes = find_node_folder(path.parent if name else path, runner, follow_links=follows)
    if nodes is None:
        return None
    settings["jobs"] = settings.get("jobs") or REMOTE_JOBS
    tree = ObjectTree(target, ObjectAddress("file", "", name), nodes)
    return _open_file(tree, name, settings) if name else _open_folder(tree, settings)


def _open_folder(tree: ObjectTree, settings: EvidenceSettings) -> Checkpoint | Megatron:
    target = tree.target
    here = tree.list_folder("")
    if not here.objects and not here.folders:
        raise CkptcheckError(f"{target} holds no object", hint="name the folder that holds the checkpoint")
    source = tree.open_checkpoint()
    if not has_safetensors(source):
        if is_megatron_tree(tree):
            return open_megatron(tree, settings, lambda: suggest_objects(tree))
        if (error := suggest_objects(tree)) is not None:
            raise error
    require_safetensors(source)
    return Checkpoint(source, **settings)


def _open_file(tree: ObjectTree, name: str, settings: EvidenceSettings) -> Checkpoint:
    """Open a single shard, or a checkpoint by its index."""
    if name.endswith(".index.json"):
        folder = tree.open_parent().open_checkpoint()
        if name in folder.files:
            return Checkpoint(folder, index_file=name, **settings)
    elif (file := tree.open_file()) is not None:
        return Checkpoint(file, single=True, **settings)
    raise CkptcheckError(
        f"{tree.target} does not exist",
        hint=f"ckptcheck scan {tree.target[: -len(name)].rstrip('/')} looks for the checkpoint in its folder",
    )


def suggest_objects(tree: ObjectTree) -> CkptcheckError | None:
    """Return an error that names the checkpoints below a folder that is no checkpoint; None if there are none below."""
    return describe_found(tree.target, [folder for folder in find_folders(tree, MOST_SEARCHED) if folder])
