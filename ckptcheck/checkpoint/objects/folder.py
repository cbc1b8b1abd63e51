"""The files of a checkpoint in an object store or on the disks of nodes: a `Source`, and the folders of a Megatron run."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ckptcheck.checkpoint.objects.address import ObjectAddress, parse_object_address
from ckptcheck.checkpoint.objects.bucket import Bucket, Listing, RequestFailure, StoredObject
from ckptcheck.checkpoint.source import CHAT_TEMPLATES, File, is_checkpoint_file
from ckptcheck.errors import CkptcheckError, EvidenceError, OutputError
from ckptcheck.text.environment_files import require_plain_files

if TYPE_CHECKING:
    from ckptcheck.checkpoint.objects.bucket_of_nodes import NodesBucket

PIECE = 1 << 23
"""Bytes of one request: so many that the transfer outweighs the latency, so few that a retry is cheap."""
PARALLEL_PIECES = 16
"""Requests at a time for one long read."""


def open_bucket(address: ObjectAddress) -> Bucket:
    """Open the bucket of an address. Raises CkptcheckError if a package or a setting is missing."""
    require_plain_files()
    if address.scheme == "msc":
        from ckptcheck.checkpoint.objects.bucket_of_msc import MscBucket

        return MscBucket(address)
    from ckptcheck.checkpoint.objects.bucket_of_obstore import ObstoreBucket

    return ObstoreBucket(address)


class ObjectFolder:
    """Some objects of a bucket, by their names below an address; a `Source`. Reads return the version that was listed.

    `read` raises FileNotFoundError, PermissionError, OSError. The folder can be pickled; the receiver opens the bucket anew.
    """

    local = None
    allows_sampling = True

    def __init__(
        self,
        target: str,
        address: ObjectAddress,
        objects: Iterable[tuple[str, StoredObject]],
        nodes: NodesBucket | None = None,
    ) -> None:
        """Describe the objects.

        Args:
            target: what the user named.
            address: where it is.
            objects: the name of each file below the target, and the object.
            nodes: the disks of a cluster's nodes, if the files lie there; None: the bucket of the address.
        """
        self.target = target
        self.is_nearby = nodes is not None
        self._address, self._nodes = address, nodes
        self._objects = dict(sorted(objects, key=lambda named: named[0]))
        self.files = {name: File(name, one.size, version=one.etag) for name, one in self._objects.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_bucket", "_threads")}

    @cached_property
    def _bucket(self) -> Bucket:
        return self._nodes or open_bucket(self._address)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(PARALLEL_PIECES, "ckptcheck-objects")

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start` on; long ranges in parallel pieces."""
        stored = self._objects[name]
        length = max(0, min(length, stored.size - start))
        if length <= PIECE:
            return self._bucket.read(stored, start, length)
        ranges = [(at, min(PIECE, start + length - at)) for at in range(start, start + length, PIECE)]
        return b"".join(self._threads.map(lambda part: self._bucket.read(stored, *part), ranges))

    def view(self, name: str, start: int, length: int) -> bytes | memoryview:
        """Read as `read` does, without a copy if the client needs none."""
        stored = self._objects[name]
        length = max(0, min(length, stored.size - start))
        # a piece of whole rows may be somewhat longer
        return self._bucket.view(stored, start, length) if length < 2 * PIECE else self.read(name, start, length)

    def find_nodes(self, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes of a cluster that have all these files on their disks; empty for files of an object store."""
        if self._nodes is None:
            return frozenset()
        return self._nodes.find_nodes(self._objects[name].key for name in names if name in self._objects)


class ObjectTree:
    """The folders below an address, for a Megatron run. Each folder is listed on first use."""

    local = None

    def __init__(self, target: str, address: ObjectAddress, nodes: NodesBucket | None = None) -> None:
        self.target, self.address = target, address
        self._nodes = nodes
        self.bucket: Bucket = nodes or open_bucket(address)
        self._listings: dict[str, Listing] = {}

    def list_folder(self, folder: str) -> Listing:
        """Return what lies directly in a folder below the target. Raises CkptcheckError, EvidenceError."""
        if folder not in self._listings:
            try:
                self._listings[folder] = self.bucket.list_folder(self._key(folder))
            except RequestFailure as failure:
                raise explain_target(failure) from failure
        return self._listings[folder]

    def find_file(self) -> StoredObject | None:
        """Describe the object that the target itself names; None if it names none. Raises CkptcheckError, EvidenceError."""
        try:
            return self.bucket.find(self.address.key) if self.address.key else None
        except RequestFailure as failure:
            raise explain_target(failure) from failure

    def list_names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder."""
        return [one.key.rpartition("/")[2] for one in self.list_folder(folder).objects]

    def list_subfolders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder."""
        return list(self.list_folder(folder).folders)

    def list_outside_links(self, folder: str) -> dict[str, str]:
        """Return {}: an object store has no links."""
        return {}

    def has_file(self, name: str) -> bool:
        """Whether there is such a file, by its path below the target."""
        folder, _, last = name.rpartition("/")
        parent, _, inner = folder.rpartition("/")
        return (not folder or inner in self.list_subfolders(parent)) and last in self.list_names(folder)

    def read_start(self, name: str, most: int) -> bytes:
        """Return the first bytes of a file. Raises OSError."""
        folder = name.rpartition("/")[0]
        key = self._key(name)
        stored = next((one for one in self.list_folder(folder).objects if one.key == key), None)
        if stored is None:
            raise FileNotFoundError(errno.ENOENT, "it is not in the bucket")
        return self.bucket.read(stored, 0, most)

    def open_folders(self, folders: Iterable[str]) -> ObjectFolder:
        """Return the files directly in these folders, by their paths below the target."""
        objects = []
        for folder in folders:
            inside = f"{folder}/" if folder else ""
            objects += [(inside + one.key.rpartition("/")[2], one) for one in self.list_folder(folder).objects]
        return ObjectFolder(self.target, self.address, objects, self._nodes)

    def open_checkpoint(self) -> ObjectFolder:
        """Return the files of a Hugging Face checkpoint: the files at the top, and its chat templates."""
        inner = [CHAT_TEMPLATES] if CHAT_TEMPLATES in self.list_subfolders("") else []
        folder = self.open_folders(["", *inner])
        kept = [(name, folder._objects[name]) for name in folder.files if is_checkpoint_file(name)]
        return ObjectFolder(self.target, self.address, kept, self._nodes)

    def open_file(self) -> ObjectFolder | None:
        """Return the object that the target itself names; None if it names none. Raises CkptcheckError, EvidenceError."""
        if (stored := self.find_file()) is None:
            return None
        parent, _, name = self.address.key.rpartition("/")
        return ObjectFolder(self.target, structs.replace(self.address, key=parent), [(name, stored)], self._nodes)

    def open_parent(self) -> ObjectTree:
        """Return the folder of the object that the target names."""
        return ObjectTree(
            self.target, structs.replace(self.address, key=self.address.key.rpartition("/")[0]), self._nodes
        )

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.address.key, name)))


def read_object(target: str, most: int) -> bytes:
    """Return the content of one object, up to `most` bytes. Raises OSError, and CkptcheckError if a setting is missing."""
    tree = ObjectTree(target, parse_object_address(target))
    if (stored := tree.find_file()) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such object")
    if stored.size > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, which no such file has")
    return ObjectFolder(target, tree.address, [("", stored)]).read("", 0, stored.size)


class StoredOutput:
    """One object to write."""

    def __init__(self, target: str) -> None:
        """Open its bucket now, before the work that produces its content. Raises CkptcheckError."""
        self.target, self._address = target, parse_object_address(target)
        if not self._address.key or target.endswith("/"):
            raise CkptcheckError(
                f"{target} names no object", hint="name the object too: s3://bucket/folder/manifest.json"
            )
        self._bucket = open_bucket(self._address)

    def write(self, content: bytes) -> None:
        """Write the object, whole or not at all. Raises OutputError."""
        try:
            self._bucket.write(self._address.key, content)
        except RequestFailure as failure:
            raise OutputError(f"cannot write {self.target}: {failure.text}", failure.hint) from failure


def explain_target(failure: RequestFailure) -> CkptcheckError:
    """Return the error of a target that cannot be opened: EvidenceError if the store is to blame, not the user."""
    kind = EvidenceError if failure.errno == errno.EIO else CkptcheckError
    return kind(failure.text, failure.hint)
