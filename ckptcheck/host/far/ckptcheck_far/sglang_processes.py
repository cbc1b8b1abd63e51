"""How SGLang's processes begin: on a CPU they are forked from one that has imported everything.

SGLang has multiprocessing spawn its scheduler and detokenizer, and each then imports for as long as all the rest of a start
takes. Forked from a process that did nothing but import (multiprocessing's forkserver), they begin at once, the next time
too. Where there is a GPU, SGLang is left as it is.
"""

from __future__ import annotations

from typing import Any

IMPORTED = ["sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager", "sglang.srt.models.registry"]


def fork_ready() -> None:
    """Have multiprocessing fork from such a process, whatever SGLang asks for; start it while SGLang is imported here."""
    import multiprocessing
    from multiprocessing import forkserver

    if multiprocessing.get_start_method(allow_none=True) == "forkserver":
        return
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(IMPORTED)
    multiprocessing.set_start_method = _stay
    forkserver.ensure_running()


def _stay(*_: Any, **__: Any) -> None:
    """Leave the way as it is."""
