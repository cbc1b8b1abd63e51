"""The addition of ckptcheck to every worker of vLLM (``worker_extension_cls``): vLLM's own half of `RankHalf`.

collective_rpc calls the methods, so one worker in this process and several in their own processes work alike. They return plain
data. vLLM imports this module in each worker before it loads the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import (
    expert_slots,
    interruptions,
    tensor_files,
    vector_math,  # noqa: F401
    vllm_gloo,
    vllm_plain,
)
from .rank_half import RankHalf

vllm_plain.apply_plain_mode()
vllm_gloo.register()

DRAFT_PREFIX = "draft:"
"""Prefix of the names of a draft model's tensors."""


class Extension(RankHalf):
    """Mixed into vLLM's worker class."""

    model_runner: Any
    vllm_config: Any
    # the absorbed projections of multi-head latent attention
    ckptcheck_rebuilt = ("W_UK", "W_UK_T", "W_UV", "W_K", "W_V")

    def ckptcheck_models(self) -> Iterator[tuple[str, Any]]:
        """Yield (prefix of its names, model) of the served model, and of a draft model."""
        yield "", self.model_runner.get_model()
        if (draft := self._ckptcheck_draft()) is not None:
            yield DRAFT_PREFIX, draft

    def ckptcheck_device(self) -> Any:
        """Return the device of this rank."""
        return self.model_runner.device

    def ckptcheck_notes(self) -> dict[str, Any]:
        """Return the state that one call keeps for the next on this rank."""
        notes: dict[str, Any] = self.__dict__.setdefault("_ckptcheck_notes", {})
        return notes

    def ckptcheck_keeps_draft(self) -> bool:
        """Return whether the draft model comes from a checkpoint of its own; MTP layers come from the model's checkpoint."""
        config = self.vllm_config
        draft = getattr(config.speculative_config, "draft_model_config", None)
        return draft is not None and draft.model != config.model_config.model

    def ckptcheck_expert_layers(self) -> Any:
        """Return the layers of experts."""
        return expert_slots.vllm_layers(self.model_runner.get_model(), getattr(self.model_runner, "eplb_state", None))

    def ckptcheck_adapter_tensors(self, adapter: int) -> Iterator[tuple[str, str, Any, str]]:
        """Yield the tensors of the adapter with this number on this rank."""
        return slot_tensors(self.model_runner.get_model().lora_manager, adapter)

    def ckptcheck_load_weights(
        self, buckets: list[dict[str, Any]], raw: bool, is_draft: bool = False
    ) -> dict[str, Any]:
        """Load all buckets by reload_weights, or raw: one after the other by the model's own load_weights, as
        frameworks that patch the model do. is_draft: by the draft model's load_weights, raw only. Reports an exception
        instead of raising it.
        """
        import torch

        try:
            with torch.no_grad(), self._ckptcheck_filled_memory():
                if raw:
                    model = self._ckptcheck_draft() if is_draft else self.model_runner.get_model()
                    return {"rank": self.rank, "loaded_names": self._ckptcheck_load_raw(model, buckets)}
                stream = interruptions.read_stream(buckets)
                self.reload_weights(weights_iterator=stream, is_checkpoint_format=True)  # type: ignore[attr-defined]
        except Exception as error:
            return {"rank": self.rank, "error": f"{type(error).__name__}: {error}"}
        return {"rank": self.rank, "loaded_names": None}

    def _ckptcheck_load_raw(self, model: Any, buckets: list[dict[str, Any]]) -> list[str] | None:
        """Load buckets by a model's load_weights; return the names that it reports, None if it reports none."""
        import torch

        reports_names = True
        loaded: set[str] = set()
        with torch.inference_mode():
            for bucket in buckets:
                if interruptions.interrupt(bucket):
                    continue
                names = model.load_weights(tensor_files.read_bucket(bucket))
                reports_names, loaded = reports_names and names is not None, loaded.union(names or ())
        return sorted(loaded) if reports_names else None

    def ckptcheck_fill_new_memory(self, on: bool) -> None:
        """Fill the memory that an update by vLLM's own call allocates with NaN, or stop it (see `nan_filled_memory`)."""
        if on:
            self._ckptcheck_filling = contextlib.ExitStack()
            self._ckptcheck_filling.enter_context(self._ckptcheck_filled_memory())
        else:
            self._ckptcheck_filling.close()

    def ckptcheck_time_updates(self, on: bool) -> None:
        """Let the next updates run as in a job, to time them, or end that: no memory is filled meanwhile."""
        self._ckptcheck_is_timed = on

    def ckptcheck_rebalance_experts(self) -> None:
        """Have vLLM place the experts anew, on all ranks together."""
        expert_slots.rearrange_vllm(self.model_runner.eplb_state)

    def _ckptcheck_filled_memory(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if getattr(self, "_ckptcheck_is_timed", False) else nan_filled_memory()

    def ckptcheck_record_experts(self, begin: bool) -> list[Any]:
        """Begin to record the experts of every token, or end and return them by layer; only plain mode's experts record."""
        recorded, vllm_plain.recorded_experts = vllm_plain.recorded_experts, {} if begin else None
        return list((recorded or {}).values())

    def _ckptcheck_draft(self) -> Any:
        """Return the draft model, None without one."""
        drafters = (getattr(self.model_runner, attribute, None) for attribute in ("drafter", "speculator"))
        return next((model for each in drafters if (model := getattr(each, "model", None)) is not None), None)


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


@contextlib.contextmanager
def nan_filled_memory() -> Iterator[None]:
    """Make torch fill new memory with NaN, to recognise memory that an update allocates and does not write.

    Torch does that in deterministic mode, which also makes loaders that scatter or index slower on a GPU.
    """
    import torch

    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
