"""Imports without looking for garbage: importing this module stops that, `end_quick_imports` starts it again.

Imports of engines make millions of objects and no garbage; looking for some takes a fifth of their time. What they made never goes,
so it is left out for good. Processes that are forked from one that only imports (SGLang's) import this module first.
"""

from __future__ import annotations

import gc

gc.disable()


def end_quick_imports() -> None:
    """Look for garbage from now on, but not among what was imported."""
    if not gc.isenabled():
        gc.freeze()
        # vLLM freezes what its engine made, and at the engine's end unfreezes all, what was imported as well. It looks for garbage
        # several times at each start and end, and each time would take a second.
        gc.freeze = gc.unfreeze = _keep_frozen
        gc.enable()


def _keep_frozen() -> None:
    """Leave what is frozen as it is."""
