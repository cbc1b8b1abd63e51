"""What ckptcheck adds to every worker of vLLM (``worker_extension_cls``): it looks at the model where it lies.

The methods are called by collective_rpc, so one worker in this process and several in their own are the same. What they
return is plain data. vLLM imports this module in each worker before it loads the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import capture, hf_taps, inventory, ipc, plane, tensors, vllm_gloo, vllm_plain

vllm_plain.settle()
vllm_gloo.register()

REBUILT = ("W_UK", "W_UK_T", "W_UV", "W_K", "W_V")
"""Derived tensors that vLLM makes anew after every update: the absorbed projections of multi-head latent attention."""

DRAFT = "draft:"
"""Before the names of a draft model's tensors."""


class Extension:
    """Mixed into vLLM's worker class; all names begin with ckptcheck_ for they must not meet its own."""

    rank: int
    model_runner: Any
    vllm_config: Any

    def ckptcheck_manifest(self, seen: bool = True) -> dict[str, Any]:
        """Say what this rank holds (see `inventory`)."""
        return inventory.manifest(self.rank, self._ckptcheck_tensors(), seen)

    def ckptcheck_scramble(self) -> dict[str, Any]:
        """Mark every parameter and the derived tensors that updates rebuild."""
        foreign = self._ckptcheck_foreign_draft()
        told, self._ckptcheck_marked = inventory.scramble(self.rank, self._ckptcheck_tensors(), REBUILT, foreign)
        return told

    def ckptcheck_leftovers(self) -> dict[str, Any]:
        """Say which of them an update did not write wholly."""
        return inventory.leftovers(self.rank, self._ckptcheck_tensors(), getattr(self, "_ckptcheck_marked", {}))

    def ckptcheck_load(self, parcels: list[dict[str, Any]], raw: bool) -> dict[str, Any]:
        """Give all parcels to reload_weights, or one after the other to the model's own load_weights, as frameworks that patch the
        model do; an exception is an answer.
        """
        import torch

        stream = ((name, tensor) for parcel in parcels for name, tensor in plane.opened(parcel))
        loaded: set[str] = set()
        try:
            with torch.no_grad(), blank_memory():
                if raw:
                    model, told = self.model_runner.get_model(), True
                    with torch.inference_mode():
                        for parcel in parcels:
                            names = model.load_weights(plane.opened(parcel))
                            told, loaded = told and names is not None, loaded.union(names or ())
                    return {"rank": self.rank, "returned": sorted(loaded) if told else None}
                self.reload_weights(weights_iterator=stream, is_checkpoint_format=True)  # type: ignore[attr-defined]
        except Exception as error:
            return {"rank": self.rank, "error": f"{type(error).__name__}: {error}"}
        return {"rank": self.rank, "returned": None}

    def ckptcheck_blank(self, on: bool) -> None:
        """Have what an update by vLLM's own call allocates be recognised, or no longer (see `blank_memory`)."""
        if on:
            self._ckptcheck_blank = contextlib.ExitStack()
            self._ckptcheck_blank.enter_context(blank_memory())
        else:
            self._ckptcheck_blank.close()

    def ckptcheck_gpu(self) -> str:
        """Return the UUID of this rank's GPU."""
        return ipc.uuid(self.model_runner.device.index)

    def ckptcheck_fetch(self, wanted: list[list[str]], path: str) -> dict[str, Any]:
        """Put tensors on the plane of files. wanted: names, by rank."""
        return inventory.fetch(self.rank, self._ckptcheck_tensors(), wanted, path)

    def ckptcheck_watch(self, begin: bool) -> list[Any]:
        """Begin to note, or end and return, the experts that tokens go to, by layer; plain mode's experts tell."""
        seen, vllm_plain.watched = vllm_plain.watched, {} if begin else None
        return list((seen or {}).values())

    def ckptcheck_listen(self, tokens: int) -> None:
        """Keep what the modules give out in the next forward, of a prompt."""
        self._ckptcheck_listening = contextlib.ExitStack()
        model = self.model_runner.get_model()
        self._ckptcheck_captured = self._ckptcheck_listening.enter_context(
            capture.listening([*hf_taps.taps(model)], tokens)
        )

    def ckptcheck_heard(self, path: str) -> dict[str, Any]:
        """Stop listening and put what was kept on the plane of files."""
        self._ckptcheck_listening.close()
        return capture.put(self._ckptcheck_captured, f"{path}.{self.rank}")

    def ckptcheck_poke(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a flat element: a fault, to see that it is found."""
        inventory.poke(self._ckptcheck_tensors(), name, index, bit)

    def ckptcheck_seed(self, number: int) -> None:
        """Seed the sampler for the request that comes next."""
        import torch

        torch.manual_seed(number)

    def ckptcheck_memory(self) -> list[int]:
        """Return the process and the bytes that it holds."""
        return inventory.memory(self.model_runner.device)

    def _ckptcheck_tensors(self) -> Iterator[tuple[str, str, Any, str]]:
        yield from tensors.walk(self.model_runner.get_model())
        for attribute in ("drafter", "speculator"):  # a draft model is a model that has to be updated too
            draft = getattr(getattr(self.model_runner, attribute, None), "model", None)
            if draft is not None:
                yield from tensors.walk(draft, DRAFT)

    def _ckptcheck_foreign_draft(self) -> bool:
        """Whether the draft model was not loaded from the model's own checkpoint, as MTP layers are."""
        config = self.vllm_config
        draft = getattr(config.speculative_config, "draft_model_config", None)
        return draft is not None and draft.model != config.model_config.model


@contextlib.contextmanager
def blank_memory() -> Iterator[None]:
    """Have torch fill new memory with NaN, so that what an update allocates and does not write can be recognised."""
    import torch

    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
