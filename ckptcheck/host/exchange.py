"""The data plane of files: tensors pass between far sides through safetensors files in a private folder.

What goes over the control channel is an address or a parcel, and both name the plane, so that other planes (a process
group, CUDA IPC) need no other messages:

    address  {"plane": "file" | "memory", "path": …}                      where to put tensors
    parcel   {"plane": …, "path": …, "tensors": 12, "bytes": 4096}        what was put there

``memory`` is the same file in /dev/shm, which is never written to a disk. A far side uses `ckptcheck_far.plane`; on this
side a parcel is a checkpoint like any other.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal

from ckptcheck.errors import CkptcheckError

Plane = Literal["file", "memory"]
MEMORY = Path("/dev/shm")
SPARE = 1.1
"""How much more than the tensors has to be free: headers, and what else is written there meanwhile."""


class Exchange:
    """A private folder on one of the planes. Use as a context manager; give `folder` to the hosts as scratch.

    plane: None takes memory where `need` bytes fit into it, else files in the temporary folder. Containers often have
    64 MB of /dev/shm. Raises CkptcheckError where `need` bytes do not fit.
    """

    def __init__(self, plane: Plane | None = None, *, need: int = 0) -> None:
        files = Path(tempfile.gettempdir())
        if plane is None:
            plane = "memory" if _free(MEMORY) >= need * SPARE and MEMORY.is_dir() else "file"
        parent = MEMORY if plane == "memory" else files
        if (free := _free(parent)) < need * SPARE:
            raise CkptcheckError(
                f"{parent} has room for {free:,} bytes, and {need:,} bytes of tensors are to pass through it"
            )
        self.plane: Plane = plane
        self.folder = Path(tempfile.mkdtemp(prefix="ckptcheck-tensors-", dir=parent))

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, name: str) -> dict[str, str]:
        """Return where a far side is to put tensors. name: of the file, without an ending."""
        return {"plane": self.plane, "path": str(self.folder / f"{name}.safetensors")}

    def close(self) -> None:
        """Remove all that was put here; may be called twice."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
