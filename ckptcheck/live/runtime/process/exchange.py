"""Passes tensors between workers through safetensors files in a private folder.

A message over the control socket only holds an address, so that tensors in a process group or in CUDA IPC memory need no other
messages:

    {"kind": "file" | "memory", "path": …}                                where to write tensors
    {"kind": …, "path": …, "tensors": 12, "bytes": 4096}                 the tensors that were written there

``memory`` is a file in /dev/shm, which never reaches a disk. A worker uses `ckptcheck_worker.tensor_files`; for the client the
file is a checkpoint like any other.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal

from ckptcheck.errors import CkptcheckError

Medium = Literal["file", "memory"]
SHARED_MEMORY = Path("/dev/shm")
HEADROOM = 1.1
"""Free space required per byte of tensors: headers, and what other programs write meanwhile."""


class TensorExchange:
    """A private folder for tensor files. Use it as a context manager; pass `folder` to the workers as scratch.

    medium: memory or file; None takes memory if `need` bytes fit there, otherwise files in the temporary folder (containers
    often have only 64 MB of /dev/shm). Raises CkptcheckError if `need` bytes do not fit.
    """

    def __init__(self, medium: Medium | None = None, *, need: int = 0) -> None:
        files = Path(tempfile.gettempdir())
        if medium is None:
            medium = "memory" if _free_bytes(SHARED_MEMORY) >= need * HEADROOM and SHARED_MEMORY.is_dir() else "file"
        parent = SHARED_MEMORY if medium == "memory" else files
        if (free := _free_bytes(parent)) < need * HEADROOM:
            raise CkptcheckError(
                f"{parent} has room for {free:,} bytes, and {need:,} bytes of tensors are to pass through it"
            )
        self.medium: Medium = medium
        self.folder = Path(tempfile.mkdtemp(prefix="ckptcheck-tensors-", dir=parent))

    def __enter__(self) -> TensorExchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, name: str) -> dict[str, str]:
        """Return the address of a file to which a worker writes tensors. name: of the file, without a suffix."""
        return {"kind": self.medium, "path": str(self.folder / f"{name}.safetensors")}

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
