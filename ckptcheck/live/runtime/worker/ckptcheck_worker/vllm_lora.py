"""Loads LoRA adapters into vLLM, serves requests with them, and digests the slots in which a rank holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_requests: dict[str, Any] = {}


def load_adapter(llm: Any, name: str, path: str, update: str) -> None:
    """Load an adapter, or another one under the same name and number.

    update: reload removes the one before and adds the new one; inplace has vLLM replace it; same only names the new path in
    later requests.
    """
    from vllm.lora.request import LoRARequest

    number = _requests[name].lora_int_id if name in _requests else len(_requests) + 1
    request = LoRARequest(name, number, path)
    engine = llm.llm_engine
    if update == "reload" and name in _requests:
        engine.remove_lora(number)
    if update == "reload":
        engine.add_lora(request)
    elif update == "inplace":
        engine.add_lora(LoRARequest(name, number, path, load_inplace=True))
    _requests[name] = request


def find_request(name: str) -> Any:
    """Return the request for an adapter, None for the name ""."""
    return _requests[name] if name else None


def forget() -> None:
    """Forget all adapters: the engine is gone."""
    _requests.clear()


def slot_tensors(manager: Any, number: int) -> Iterator[tuple[str, str, Any, str]]:
    """Yield the tensors of an adapter on this rank, as `tensors.walk` yields tensors; nothing if it has no slot.

    manager: vLLM's LoRAModelManager. Every module keeps the adapters of all slots in stacked tensors, the slot first.
    """
    if number not in manager.lora_index_to_id:
        return
    slot = manager.lora_index_to_id.index(number)
    for module_name, module in manager.modules.items():
        for attribute in ("lora_a_stacked", "lora_b_stacked"):
            stacked = getattr(module, attribute, ())
            for part, tensor in enumerate(stacked if isinstance(stacked, (tuple, list)) else (stacked,)):
                yield f"{module_name}.{attribute}.{part}", "derived", tensor[slot], ""
