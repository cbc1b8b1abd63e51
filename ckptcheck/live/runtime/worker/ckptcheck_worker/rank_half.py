"""Reads and changes one rank of an engine: the common half for vLLM and SGLang."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

from . import arrivals, capture, expert_slots, hf_hooks, inventory, ipc, tensors


class RankHalf:
    """One rank. Each engine adds its own half, which defines the first methods here. Every result is plain data.

    All names begin with ckptcheck_ so that they cannot collide with those of vLLM's worker class, into which this is mixed.
    """

    rank: int
    ckptcheck_rebuilt: ClassVar[tuple[str, ...]] = ()
    """Derived tensors that the engine rebuilds after every update."""

    def ckptcheck_models(self) -> Iterator[tuple[str, Any]]:
        """Yield (prefix of its names, model) of the served model, and of a draft model: an update has to reach both."""
        raise NotImplementedError

    def ckptcheck_device(self) -> Any:
        """Return the device of the served model."""
        raise NotImplementedError

    def ckptcheck_notes(self) -> dict[str, Any]:
        """Return the state that one call keeps for the next on this rank."""
        raise NotImplementedError

    def ckptcheck_keeps_draft(self) -> bool:
        """Return whether the draft model keeps its weights by default."""
        return False

    def ckptcheck_expert_layers(self) -> Any:
        """Return the layers of experts, as `expert_slots.digest_slots` takes them."""
        raise NotImplementedError

    def ckptcheck_adapter_tensors(self, adapter: Any) -> Iterator[tuple[str, str, Any, str]]:
        """Yield the tensors of an adapter on this rank, as `tensors.walk` yields tensors."""
        raise NotImplementedError

    def ckptcheck_tensors(self) -> Iterator[tuple[str, str, Any, str]]:
        """Walk the tensors of all models."""
        for prefix, model in self.ckptcheck_models():
            yield from tensors.walk(model, prefix)

    def ckptcheck_served_model(self) -> Any:
        """Return the model that is served."""
        return next(iter(self.ckptcheck_models()))[1]

    def ckptcheck_digest_tensors(self, with_digests: bool = True) -> dict[str, Any]:
        """Digest the tensors of this rank (see `inventory`)."""
        return inventory.digest_tensors(self.rank, self.ckptcheck_tensors(), with_digests)

    def ckptcheck_sum_parts(self, parts_by_rank: list[list[Any]]) -> list[list[int]]:
        """Sum the parts of weights that this rank holds (see `inventory`)."""
        return inventory.sum_parts(self.ckptcheck_tensors(), parts_by_rank[self.rank])

    def ckptcheck_read_scalars(self) -> dict[str, Any]:
        """Read the numbers that this rank keeps on the host (see `inventory`)."""
        numbers = (entry for prefix, model in self.ckptcheck_models() for entry in tensors.walk_scalars(model, prefix))
        return inventory.read_scalars(self.rank, numbers)

    def ckptcheck_digest_adapter(self, adapter: Any) -> dict[str, Any]:
        """Digest the tensors of an adapter on this rank."""
        return inventory.digest_tensors(self.rank, self.ckptcheck_adapter_tensors(adapter))

    def ckptcheck_scramble_weights(self, keep_draft: bool | None = None) -> dict[str, Any]:
        """Overwrite every parameter, and the derived tensors that updates rebuild, with sentinels.

        keep_draft: whether the draft model keeps its weights; None: as `ckptcheck_keeps_draft` says.
        """
        keeps = self.ckptcheck_keeps_draft() if keep_draft is None else keep_draft
        report, scrambled = inventory.scramble_weights(
            self.rank, self.ckptcheck_tensors(), self.ckptcheck_rebuilt, keeps
        )
        self.ckptcheck_notes()["scrambled"] = scrambled
        return report

    def ckptcheck_find_unwritten(self) -> dict[str, Any]:
        """Find the scrambled tensors that an update did not write completely."""
        scrambled = self.ckptcheck_notes().get("scrambled", {})
        return inventory.find_unwritten(self.rank, self.ckptcheck_tensors(), scrambled)

    def ckptcheck_fetch_tensors(self, names_by_rank: list[list[str]], path: str) -> dict[str, Any]:
        """Write the requested tensors of this rank to a file."""
        return inventory.fetch_tensors(self.rank, self.ckptcheck_tensors(), names_by_rank, path)

    def ckptcheck_digest_expert_slots(self) -> dict[str, Any]:
        """Digest each slot of the expert tensors (see `expert_slots`)."""
        return expert_slots.digest_slots(self.rank, self.ckptcheck_expert_layers(), self.ckptcheck_tensors())

    def ckptcheck_record_arrivals(self, expected: list[str], is_brief: bool) -> None:
        """Record from now on the tensors that reach the model's load_weights (see `arrivals`)."""
        arrivals.record(self.ckptcheck_served_model(), expected, is_brief)

    def ckptcheck_read_arrivals(self) -> dict[str, Any]:
        """Return the records of this rank, and stop recording."""
        return arrivals.read(self.rank)

    def ckptcheck_start_capture(self, tokens: int) -> None:
        """Capture the activations of the next forward, of a prompt of so many tokens."""
        stack = contextlib.ExitStack()
        hooks = [*hf_hooks.model_hooks(self.ckptcheck_served_model())]
        self.ckptcheck_notes()["capture"] = stack, stack.enter_context(capture.capture_modules(hooks, tokens))

    def ckptcheck_finish_capture(self, path: str) -> dict[str, Any]:
        """Remove the hooks and write the captured activations to a file."""
        stack, captured = self.ckptcheck_notes().pop("capture")
        stack.close()
        return capture.write_capture(captured, f"{path}.{self.rank}")

    def ckptcheck_seed_sampler(self, number: int) -> None:
        """Seed the sampler for the next request: on a CPU neither engine applies the seeds of requests everywhere."""
        import torch

        torch.manual_seed(number)

    def ckptcheck_memory_bytes(self) -> list[int]:
        """Return the process id and the bytes that the process holds."""
        return inventory.memory_bytes(self.ckptcheck_device())

    def ckptcheck_used_memory(self) -> list[Any]:
        """Return the device and its used bytes, by any process."""
        return inventory.used_memory(self.ckptcheck_device())

    def ckptcheck_gpu_uuid(self) -> str:
        """Return the UUID of this rank's GPU, "" on a CPU."""
        device = self.ckptcheck_device()
        return ipc.gpu_uuid(device.index or 0) if device.type == "cuda" else ""
