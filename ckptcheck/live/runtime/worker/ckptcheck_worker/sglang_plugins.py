"""Installs plugins, functions that SGLang runs in each of its processes before it builds a model; and one of them.

SGLang finds plugins as entry points of installed packages (sglang/srt/plugins, group ``sglang.srt.plugins``). A folder with
the metadata of a package is enough if it is on the path; processes that multiprocessing spawns inherit the path.
"""

from __future__ import annotations

import os
import sys

GROUP = "sglang.srt.plugins"
FOLDER_VARIABLE = "CKPTCHECK_SGLANG_FOLDER"
"""The folder for files of SGLang's processes. An environment variable, because they inherit it."""


def install_plugins(folder: str, plugins: dict[str, str]) -> None:
    """Write the metadata into a folder, and add the folder to the path of this process and of those it starts.

    folder: an empty folder that outlives SGLang. plugins: name → ``module:function``; the function takes no arguments.
    """
    metadata = os.path.join(folder, "ckptcheck_worker-0.dist-info")
    os.makedirs(metadata)
    lines = "".join(f"{name} = {place}\n" for name, place in plugins.items())
    for file, text in (
        ("METADATA", "Metadata-Version: 2.1\nName: ckptcheck-worker\nVersion: 0\n"),
        ("entry_points.txt", f"[{GROUP}]\n{lines}"),
    ):
        with open(os.path.join(metadata, file), "w", encoding="utf-8") as out:
            out.write(text)
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))


def keep_load_files() -> None:
    """Keep the file of a scheduler's load in the worker's folder, which is removed with the worker.

    SGLang 0.5.23 (managers/load_snapshot.py) puts a file for each start into /dev/shm and never removes it; older ones have none.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        from sglang.srt.managers import load_snapshot
    except ImportError:
        return
    if folder and hasattr(load_snapshot, "shm_path_for"):
        load_snapshot.shm_path_for = lambda name: os.path.join(folder, f"loads_{os.path.basename(name)}.shm")
