"""Imports without garbage collection: importing this module stops it, `end_quick_imports` starts it again.

Imports of engines make millions of objects and no garbage; collecting takes a fifth of their time. The objects live
forever, so later collections skip them. Processes that are forked from one that only imports (SGLang's) import this
module first.
"""

from __future__ import annotations

import gc

gc.disable()


def end_quick_imports() -> None:
    """Collect garbage from now on, but skip the imported objects."""
    if not gc.isenabled():
        gc.freeze()
        # vLLM freezes the objects of its engine, and at the engine's end unfreezes all, imported objects too. It
        # collects garbage several times at each start and end, and each collection would take a second.
        gc.freeze = gc.unfreeze = _keep_frozen
        gc.enable()


def _keep_frozen() -> None:
    """Keep all objects frozen."""
