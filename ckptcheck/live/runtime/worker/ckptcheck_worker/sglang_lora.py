"""Loads LoRA adapters into SGLang, and digests the slots of its memory pool in which a rank holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_loaded: set[str] = set()


def load_adapter(engine: Any, name: str, path: str, update: str) -> None:
    """Load an adapter, or another one under the same name.

    update: reload unloads the one before; same loads without that, which SGLang refuses. Raises RuntimeError for a refusal.
    """
    if update == "inplace":
        raise RuntimeError("SGLang cannot replace an adapter in place: unload it and load the new one (reload)")
    if name in _loaded and update == "reload":
        _require(engine.unload_lora_adapter(name))
    _require(engine.load_lora_adapter(name, path))
    _loaded.add(name)


def _require(result: Any) -> None:
    if not result.success:
        raise RuntimeError(str(result.error_message))


def forget() -> None:
    """Forget all adapters: the engine is gone."""
    _loaded.clear()


def slot_tensors(manager: Any, name: str) -> Iterator[tuple[str, str, Any, str]]:
    """Yield the tensors of an adapter on this rank, as `tensors.walk` yields tensors; nothing if it has no slot.

    manager: SGLang's LoRAManager. Its memory pool has a buffer for each module and layer, the slot first. An adapter that was
    unloaded and loaded again has another identifier, and the last one counts.
    """
    identifiers = [key for key, reference in manager.lora_refs.items() if reference.lora_name == name]
    pool = manager.memory_pool
    if not identifiers or identifiers[-1] not in pool.uid_to_buffer_id:
        return
    slot = pool.uid_to_buffer_id[identifiers[-1]]
    for side, buffers in (("A", pool.A_buffer), ("B", pool.B_buffer)):
        for module, layers in buffers.items():
            for layer, tensor in enumerate(layers):
                yield f"layers.{layer}.{module}.lora_{side}", "derived", tensor[slot], ""
    for label in ("embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer", "lm_head_B_buffer"):
        for module, tensor in getattr(pool, label, {}).items():
            yield f"{module}.{label}", "derived", tensor[slot], ""
