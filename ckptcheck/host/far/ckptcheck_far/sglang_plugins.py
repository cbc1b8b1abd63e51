"""Has SGLang run functions of ours in each of its processes, before it builds a model.

SGLang finds plugins as entry points of installed packages (sglang/srt/plugins, group ``sglang.srt.plugins``). A folder with
the metadata of a package is enough, as long as it is on the path; processes that multiprocessing spawns take the path over.
"""

from __future__ import annotations

import os
import sys

GROUP = "sglang.srt.plugins"


def offer(folder: str, plugins: dict[str, str]) -> None:
    """Write the metadata into a folder, and put that on the path of this process and of those it starts.

    folder: an empty one that outlives SGLang. plugins: name → ``module:function``; the function takes no arguments.
    """
    described = os.path.join(folder, "ckptcheck_far-0.dist-info")
    os.makedirs(described)
    lines = "".join(f"{name} = {place}\n" for name, place in plugins.items())
    for file, text in (
        ("METADATA", "Metadata-Version: 2.1\nName: ckptcheck-far\nVersion: 0\n"),
        ("entry_points.txt", f"[{GROUP}]\n{lines}"),
    ):
        with open(os.path.join(described, file), "w", encoding="utf-8") as out:
            out.write(text)
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))
