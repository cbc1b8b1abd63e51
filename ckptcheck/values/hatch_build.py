"""Compiles `glance.c` when the package is built or installed; without a C compiler the package is built without it.

Hatch runs this file by its path (https://hatch.pypa.io/latest/plugins/build-hook/custom/), before the package is importable.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("ckptcheck/values/glance.c")
LIBRARY = Path("ckptcheck/values/_glance.so")
CLONES = (
    'CLONES=__attribute__((target_clones("default","avx2","arch=x86-64-v4")))',  # GCC 12, Clang 17
    'CLONES=__attribute__((target_clones("default","avx2")))',
    "CLONES=",
)
"""From the fastest that a compiler may know to what all do. A processor without AVX takes the default."""


class CompiledGlance(BuildHookInterface[Any]):
    """Adds the library to wheels, and to the tree of an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. Where that fails, say so and build the package without: numpy does the same, slower."""
        root = Path(self.root)
        self._folder = tempfile.mkdtemp(prefix="ckptcheck-")
        library = root / LIBRARY if version == "editable" else Path(self._folder) / LIBRARY.name
        if os.environ.get("CKPTCHECK_PURE_PYTHON") or not compile_library(root / SOURCE, library):
            self.app.display_warning("built without the compiled look at values: scans take longer")
            return
        if version != "editable":
            build_data["force_include"][str(library)] = str(LIBRARY)
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        shutil.rmtree(self._folder, ignore_errors=True)


def compile_library(source: Path, library: Path) -> bool:
    """Compile with $CC, or cc. Returns whether that worked; only then is there a library, and never half of one."""
    if sys.platform == "win32":
        return False
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O3", "-shared", "-fPIC", str(source)]
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".glance-") as folder:
        made = Path(folder) / library.name
        for clones in CLONES:
            try:
                built = subprocess.run(
                    [*compiler, f"-D{clones}", *flags, "-o", str(made)], capture_output=True, check=False, timeout=120
                )
            except (OSError, subprocess.TimeoutExpired):
                return False
            if built.returncode == 0 and made.is_file():
                os.replace(made, library)
                return True
    return False
