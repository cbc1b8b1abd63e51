"""Installs plugins: functions that SGLang runs in each of its processes before it builds a model.

SGLang finds plugins as entry points of installed packages (sglang/srt/plugins, group ``sglang.srt.plugins``). A folder with
the metadata of a package is enough if it is on the path; processes that multiprocessing spawns inherit the path.
"""

from __future__ import annotations

import os
import sys

GROUP = "sglang.srt.plugins"


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
