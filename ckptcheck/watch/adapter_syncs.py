"""Watches the adapters (LoRA) that vLLM loads, which do not pass through its model's `load_weights`.

Written against vLLM 0.32.0: it calls `WorkerLoRAManager.add_adapter` for a request with an adapter, and to load one in advance.
Then the manager has the adapter as a `LoRAModel`, whose layers hold `lora_a` and `lora_b`, each a tensor or a list of tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptcheck.watch.watch import Watch


class AdapterSyncs:
    """Records each load of an adapter as a sync, as long as all have one name.

    An engine that serves adapters of several names may load an old one again, which is no fault: the watch then stops recording.
    """

    def __init__(self, manager: Any, watch: Watch) -> None:
        """Watch a `WorkerLoRAManager`. watch: one without an engine, because vLLM rearranges the adapters that it loads."""
        self._manager, self._watch = manager, watch
        self._last: Any = None
        self._name: str | None = None
        self._has_several = False
        add = manager.add_adapter

        @wraps(add)
        def watched(request: Any, *arguments: Any, **keywords: Any) -> Any:
            result = add(request, *arguments, **keywords)
            try:
                self._look(request)
            except Exception as error:
                with suppress(OSError):
                    sys.stderr.write(f"ckptcheck.watch could not look at an adapter: {type(error).__name__}: {error}\n")
            return result

        manager.add_adapter = watched

    def _look(self, request: Any) -> None:
        """Record the adapter of a request, unless it is the last recorded one."""
        if self._has_several:
            return
        adapter = self._manager._adapter_manager.get_adapter(request.lora_int_id)
        if adapter is None or adapter is self._last:
            return
        if self._name is not None and request.lora_name != self._name:
            self._has_several = True
            sys.stderr.write(
                f"ckptcheck.watch records no more adapters: {self._name} and {request.lora_name} are served side by side\n"
            )
            return
        self._last, self._name = adapter, request.lora_name
        with self._watch(step=max(0, self._watch.number - 1)) as sync:
            sync.sent(list(list_adapter_tensors(adapter)))


def list_adapter_tensors(adapter: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a `LoRAModel` as ``module.lora_A.weight``; those of fused modules have the number of their part."""
    for module, layer in adapter.loras.items():
        for side, held in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            if not isinstance(held, list | tuple):
                yield f"{module}.{side}.weight", held
                continue
            for part, tensor in enumerate(held):
                if tensor is not None:
                    yield f"{module}.{side}.{part}.weight", tensor
