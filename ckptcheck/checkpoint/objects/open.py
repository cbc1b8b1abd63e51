"""Opens what lies in an object store: a Hugging Face checkpoint, a file of one, or a Megatron run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.folders import is_megatron_tree
from ckptcheck.checkpoint.objects.address import ObjectAddress, parse_object_address
from ckptcheck.checkpoint.objects.find import TENSORS, find_object_checkpoints, join_folder
from ckptcheck.checkpoint.objects.folder import ObjectFolder, ObjectTree
from ckptcheck.checkpoint.open_source import REMOTE_JOBS, has_safetensors, open_megatron, require_safetensors
from ckptcheck.checkpoint.targets import MOST_SEARCHED, describe_found
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.checkpoint.open_source import EvidenceSettings


def open_objects(target: str, settings: EvidenceSettings) -> Checkpoint | Megatron:
    """Open a checkpoint in an object store, where the address may name its folder, a .safetensors file or its index.

    Raises CkptcheckError where there is nothing to check or a setting is missing, EvidenceError where the store cannot be read.
    """
    settings["jobs"] = settings.get("jobs") or REMOTE_JOBS
    address = parse_object_address(target)
    name = address.key.rpartition("/")[2]
    if not target.endswith("/") and name.endswith(TENSORS):
        return _open_file(target, address, name, settings)
    tree = ObjectTree(target, address)
    here = tree.list_folder("")
    if not here.objects and not here.folders:
        raise CkptcheckError(f"{target} holds no object", hint="name the folder that holds the checkpoint")
    source = tree.open_checkpoint()
    if not has_safetensors(source):
        if is_megatron_tree(tree):
            return open_megatron(tree, settings, lambda: suggest_objects(target))
        if (error := suggest_objects(target)) is not None:
            raise error
    require_safetensors(source)
    return Checkpoint(source, **settings)


def _open_file(target: str, address: ObjectAddress, name: str, settings: EvidenceSettings) -> Checkpoint:
    """Open one shard by itself, or a checkpoint by its index."""
    folder = ObjectAddress(address.scheme, address.bucket, address.key.rpartition("/")[0])
    if name.endswith(".index.json"):
        source = ObjectTree(target, folder).open_checkpoint()
        if name in source.files:
            return Checkpoint(source, index_file=name, **settings)
    elif (stored := ObjectTree(target, address).find_file()) is not None:
        return Checkpoint(ObjectFolder(target, folder, [(name, stored)]), single=True, **settings)
    raise CkptcheckError(
        f"{target} does not exist", hint=f"ckptcheck scan {folder} looks for the checkpoint in its folder"
    )


def suggest_objects(target: str) -> CkptcheckError | None:
    """Return the error that names the checkpoints below a folder that is none itself; None where there are none."""
    found = [one for one in find_object_checkpoints(target, MOST_SEARCHED) if one != join_folder(target, "")]
    names = [one.removeprefix(join_folder(target, "")).strip("/") for one in found]
    return describe_found(target, names)
