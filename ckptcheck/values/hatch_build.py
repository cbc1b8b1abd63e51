"""Compiles the kernels in C and writes the index of the rules when the package is built or installed.

Without a C compiler the package is built without the libraries; a checkout and an editable install have no index of the rules,
which are then read from their files (`ckptcheck/linter/rule_index.py`).

Hatch runs this file by its path (https://hatch.pypa.io/latest/plugins/build-hook/custom/), before the package can be imported.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = {
    Path("ckptcheck/values/pattern_max.c"): Path("ckptcheck/values/_pattern_max.so"),
    Path("ckptcheck/values/shard_digest.c"): Path("ckptcheck/values/_shard_digest.so"),
}
"""Source → the compiled library."""
RULE_INDEX = Path("ckptcheck/linter/rule_index.py")
PACKED_RULES = Path("ckptcheck/_rules")
CLONES = (
    'CLONES=__attribute__((target_clones("default","avx2","arch=x86-64-v4")))',  # GCC 12, Clang 17
    'CLONES=__attribute__((target_clones("default","avx2")))',
    "CLONES=",
)
"""Compiler flags, from the fastest kernel to the one that every compiler can build. A processor without AVX uses "default"."""


class CompiledKernels(BuildHookInterface[Any]):
    """Adds the compiled libraries to wheels and to the source tree of an editable install, the rules and their index to wheels.

    Wheels do not hold the cases of the rules: only the tests read them.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries. If that fails, warn and build the package without it: numpy does the same, slower."""
        root = Path(self.root)
        self._folder = tempfile.mkdtemp(prefix="ckptcheck-")
        if version != "editable":
            rules = root / "rules"
            for file in sorted(rules.rglob("*.py")):
                build_data["force_include"][str(file)] = str(PACKED_RULES / file.relative_to(rules))
            index = Path(self._folder) / "index.json"
            index.write_text(_load_rule_index(root).build_index(rules), encoding="utf-8")
            build_data["force_include"][str(index)] = str(PACKED_RULES / index.name)
        targets = {
            source: root / library if version == "editable" else Path(self._folder) / library.name
            for source, library in LIBRARIES.items()
        }
        if os.environ.get("CKPTCHECK_PURE_PYTHON") or not all(
            compile_library(root / source, target) for source, target in targets.items()
        ):
            self.app.display_warning("ckptcheck is built without its compiled kernels: what reads values takes longer")
            return
        if version != "editable":
            for source, target in targets.items():
                build_data["force_include"][str(target)] = str(LIBRARIES[source])
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries that were compiled for a wheel."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _load_rule_index(root: Path) -> ModuleType:
    """Run ckptcheck/linter/rule_index.py by its path: the package cannot be imported yet."""
    spec = importlib.util.spec_from_file_location("ckptcheck_rule_index", root / RULE_INDEX)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(root / RULE_INDEX)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look the module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def compile_library(source: Path, library: Path) -> bool:
    """Compile with $CC, or cc. Returns whether that succeeded; `library` is written only then, and never in part."""
    if sys.platform == "win32":
        return False
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O3", "-shared", "-fPIC", str(source)]
    if sys.platform == "linux":
        flags.append("-Wl,--no-as-needed")  # auditwheel distinguishes glibc from musl by it
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".kernel-") as folder:
        output = Path(folder) / library.name
        for clones in CLONES:
            try:
                process = subprocess.run(
                    [*compiler, f"-D{clones}", *flags, "-o", str(output)], capture_output=True, check=False, timeout=120
                )
            except (OSError, subprocess.TimeoutExpired):
                return False
            if process.returncode == 0 and output.is_file():
                os.replace(output, library)
                return True
    return False
