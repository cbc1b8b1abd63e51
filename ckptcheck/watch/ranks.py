"""Has every rank of a job raise what one of them found: a rank that ends alone leaves the others in their next collective."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the one that checks, which asks the engine meanwhile. It waits so long once, and then never again."""


class Ranks:
    """One watch, as all ranks of torch's default process group have it. The ranks meet in its store: no collective is added."""

    made = 0
    """Watches of this process that raise: each rank makes them in the same order."""

    def __init__(self) -> None:
        type(self).made += 1
        self._prefix, self._is_alone, self._number = f"ckptcheck/{self.made}", False, 0

    def begin(self) -> None:
        """Begin a sync of all ranks."""
        self._number += 1

    def tell(self, text: str) -> None:
        """Tell the other ranks what was found at this sync, "" for nothing. Raises as the store does."""
        if (store := _find_store()) is not None:
            store.set(f"{self._prefix}/{self._number}", text)

    def hear(self, say: Callable[[str], None]) -> str:
        """Return what the rank that checks has found at this sync; "" for nothing. say: warns where that one is silent."""
        store = None if self._is_alone else _find_store()
        if store is None:
            return ""
        try:
            store.wait([f"{self._prefix}/{self._number}"], PATIENCE)
            return bytes(store.get(f"{self._prefix}/{self._number}")).decode()
        except Exception as error:
            self._is_alone = True
            say(
                f"the ranks cannot exchange what they found ({type(error).__name__}), so this one does not raise when another does"
            )
            return ""


def _find_store() -> Any:
    """Return the store that the ranks of this job share, None without torch's default process group, or where it has one rank."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() == 1:
        return None
    return distributed.distributed_c10d._get_default_store()
