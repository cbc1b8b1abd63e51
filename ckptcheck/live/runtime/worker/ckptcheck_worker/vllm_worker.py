"""What ckptcheck adds to every worker of vLLM (``worker_extension_cls``): methods that read and change the model where it lives.

collective_rpc calls the methods, so one worker in this process and several in their own processes work alike. They return plain
data. vLLM imports this module in each worker before it loads the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import (
    arrivals,
    capture,
    expert_slots,
    hf_hooks,
    host_scalars,
    interruptions,
    inventory,
    ipc,
    tensor_files,
    tensors,
    vector_math,  # noqa: F401
    vllm_gloo,
    vllm_lora,
    vllm_plain,
)

vllm_plain.apply_plain_mode()
vllm_gloo.register()

REBUILT = ("W_UK", "W_UK_T", "W_UV", "W_K", "W_V")
"""Derived tensors that vLLM rebuilds after every update: the absorbed projections of multi-head latent attention."""

DRAFT_PREFIX = "draft:"
"""Prefix of the names of a draft model's tensors."""


class Extension:
    """Mixed into vLLM's worker class; all names begin with ckptcheck_ so that they cannot collide with vLLM's."""

    rank: int
    model_runner: Any
    vllm_config: Any

    def ckptcheck_digest_tensors(self, with_digests: bool = True) -> dict[str, Any]:
        """Digest the tensors of this rank (see `inventory`)."""
        return inventory.digest_tensors(self.rank, self._ckptcheck_tensors(), with_digests)

    def ckptcheck_sum_parts(self, parts_by_rank: list[list[Any]]) -> list[list[int]]:
        """Sum the parts of weights that this rank holds (see `inventory`)."""
        return inventory.sum_parts(self._ckptcheck_tensors(), parts_by_rank[self.rank])

    def ckptcheck_read_scalars(self) -> dict[str, Any]:
        """Read the numbers that this rank keeps on the host (see `host_scalars`)."""
        models = self._ckptcheck_models()
        return host_scalars.read_scalars(
            self.rank, (entry for prefix, model in models for entry in host_scalars.walk(model, prefix))
        )

    def ckptcheck_digest_adapter(self, number: int) -> dict[str, Any]:
        """Digest what this rank holds of the adapter with this number."""
        manager = self.model_runner.get_model().lora_manager
        return inventory.digest_tensors(self.rank, vllm_lora.slot_tensors(manager, number))

    def ckptcheck_scramble_weights(self, keep_draft: bool | None = None) -> dict[str, Any]:
        """Overwrite every parameter, and the derived tensors that updates rebuild, with sentinels.

        keep_draft: whether the draft model keeps its weights; None: only one that comes from a checkpoint of its own does.
        """
        keeps = self._ckptcheck_has_foreign_draft() if keep_draft is None else keep_draft
        report, self._ckptcheck_scrambled = inventory.scramble_weights(
            self.rank, self._ckptcheck_tensors(), REBUILT, keeps
        )
        return report

    def ckptcheck_find_unwritten(self) -> dict[str, Any]:
        """Find the scrambled tensors that an update did not write completely."""
        scrambled = getattr(self, "_ckptcheck_scrambled", {})
        return inventory.find_unwritten(self.rank, self._ckptcheck_tensors(), scrambled)

    def ckptcheck_load_weights(
        self, buckets: list[dict[str, Any]], raw: bool, is_draft: bool = False
    ) -> dict[str, Any]:
        """Load all buckets by reload_weights, or raw: one after the other by the model's own load_weights, as frameworks that
        patch the model do. is_draft: by that of the draft model, raw only. Reports an exception instead of raising it.
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

    def ckptcheck_digest_expert_slots(self) -> dict[str, Any]:
        """Digest each slot of the expert tensors (see `expert_slots`)."""
        layers = expert_slots.vllm_layers(self.model_runner.get_model(), getattr(self.model_runner, "eplb_state", None))
        return expert_slots.digest_slots(self.rank, layers, self._ckptcheck_tensors())

    def ckptcheck_rebalance_experts(self) -> None:
        """Have vLLM place the experts anew, on all ranks together."""
        expert_slots.rearrange_vllm(self.model_runner.eplb_state)

    def ckptcheck_record_arrivals(self, expected: list[str], is_brief: bool) -> None:
        """Note from now on what reaches the model's load_weights (see `arrivals`)."""
        arrivals.record(self.model_runner.get_model(), expected, is_brief)

    def ckptcheck_read_arrivals(self) -> dict[str, Any]:
        """Return what has reached it on this rank, and note nothing any more."""
        return arrivals.read(self.rank)

    def _ckptcheck_filled_memory(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if getattr(self, "_ckptcheck_is_timed", False) else nan_filled_memory()

    def ckptcheck_gpu_uuid(self) -> str:
        """Return the UUID of this rank's GPU."""
        return ipc.gpu_uuid(self.model_runner.device.index)

    def ckptcheck_fetch_tensors(self, names_by_rank: list[list[str]], path: str) -> dict[str, Any]:
        """Write the requested tensors of this rank to a file."""
        return inventory.fetch_tensors(self.rank, self._ckptcheck_tensors(), names_by_rank, path)

    def ckptcheck_record_experts(self, begin: bool) -> list[Any]:
        """Begin to record the experts of every token, or end and return them by layer; only plain mode's experts record."""
        recorded, vllm_plain.recorded_experts = vllm_plain.recorded_experts, {} if begin else None
        return list((recorded or {}).values())

    def ckptcheck_start_capture(self, tokens: int) -> None:
        """Capture the activations of the next forward, of a prompt of so many tokens."""
        self._ckptcheck_hooks = contextlib.ExitStack()
        hooks = [*hf_hooks.model_hooks(self.model_runner.get_model())]
        self._ckptcheck_capture = self._ckptcheck_hooks.enter_context(capture.capture_modules(hooks, tokens))

    def ckptcheck_finish_capture(self, path: str) -> dict[str, Any]:
        """Remove the hooks and write the captured activations to a file."""
        self._ckptcheck_hooks.close()
        return capture.write_capture(self._ckptcheck_capture, f"{path}.{self.rank}")

    def ckptcheck_seed_sampler(self, number: int) -> None:
        """Seed the sampler for the next request."""
        import torch

        torch.manual_seed(number)

    def ckptcheck_memory_bytes(self) -> list[int]:
        """Return the process id and the bytes that the process holds."""
        return inventory.memory_bytes(self.model_runner.device)

    def ckptcheck_used_memory(self) -> list[Any]:
        """Return the device and the bytes that are taken there, by whomever."""
        return inventory.used_memory(self.model_runner.device)

    def _ckptcheck_tensors(self) -> Iterator[tuple[str, str, Any, str]]:
        for prefix, model in self._ckptcheck_models():
            yield from tensors.walk(model, prefix)

    def _ckptcheck_models(self) -> Iterator[tuple[str, Any]]:
        """Yield (prefix of its names, model) of the served model and of a draft model: an update has to reach both."""
        yield "", self.model_runner.get_model()
        if (draft := self._ckptcheck_draft()) is not None:
            yield DRAFT_PREFIX, draft

    def _ckptcheck_draft(self) -> Any:
        """Return the draft model, None without one."""
        drafters = (getattr(self.model_runner, attribute, None) for attribute in ("drafter", "speculator"))
        return next((model for each in drafters if (model := getattr(each, "model", None)) is not None), None)

    def _ckptcheck_has_foreign_draft(self) -> bool:
        """Return whether the draft model comes from a checkpoint of its own; MTP layers come from the model's checkpoint."""
        config = self.vllm_config
        draft = getattr(config.speculative_config, "draft_model_config", None)
        return draft is not None and draft.model != config.model_config.model


@contextlib.contextmanager
def nan_filled_memory() -> Iterator[None]:
    """Make torch fill new memory with NaN, so that memory which an update allocates and does not write is recognised.

    Torch does that in deterministic mode, which also makes loaders that scatter or index slower on a GPU.
    """
    import torch

    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
