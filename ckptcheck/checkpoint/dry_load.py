"""What a consumer's own loader makes of a checkpoint whose values it does not see: ``ckptcheck scan --dry-load``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class DryLoad:
    """One consumer's answer. Lists of names are sorted; of very long ones only the beginning is kept, so each has a count."""

    consumer: str
    """Its name and version: ``vLLM 0.32.0``."""
    model: str = ""
    """The class that it built; "" where it got no further than the configuration."""
    refused: str = ""
    """Why it refused the checkpoint; "" where it loaded it to the end."""
    unasked: str = ""
    """Why it could not be asked; "" where it was."""
    parameters: int = 0
    """How many parameters the model has."""
    unfilled: tuple[str, ...] = ()
    """Parameters that nothing stored fills."""
    unfilled_count: int = 0
    partly: tuple[tuple[str, int, int], ...] = ()
    """Parameters that are filled in part: name, elements that are filled, all elements."""
    partly_count: int = 0
    misshapen: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    """Parameters of another shape than the stored tensor: name, stored shape, shape in the model."""
    misshapen_count: int = 0
    left_out: tuple[str, ...] = ()
    """Stored tensors that the model has no place for."""
    left_out_count: int = 0
    at_zero: tuple[str, ...] = ()
    """Biases that start at zero and that no layer has stored whole; right for a model that never had them."""
    at_zero_count: int = 0


class DryLoader(Protocol):
    """Asks one consumer about checkpoints; `runtime.dry_loading.WorkerDryLoader` does."""

    @property
    def name(self) -> str:
        """transformers, vllm or sglang."""
        ...

    def load(self, ckpt: Any) -> DryLoad:
        """Return what the consumer makes of a `Checkpoint` (whose options name this loader, so that its type is not named here).

        Raises EvidenceError where its process cannot be run.
        """
        ...
