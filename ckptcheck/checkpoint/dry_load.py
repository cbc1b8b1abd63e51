"""The result of loading a checkpoint without its values by a consumer's own loader: ``ckptcheck scan --dry-load``."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class DryLoad(msgspec.Struct, frozen=True):
    """One consumer's answer. Lists of names are sorted and cut if very long, so each has a count."""

    consumer: str
    """Its name and version: ``vLLM 0.32.0``."""
    model: str = ""
    """The class that it built; "" if it failed at the configuration."""
    refused: str = ""
    """Why it refused the checkpoint; "" if it loaded it to the end."""
    unasked: str = ""
    """Why it did not try to load, or not to the end; "" if it did."""
    broke_off: bool = False
    """Whether that is trouble of its process: it died, hung, or got no memory."""
    parameters: int = 0
    """How many parameters the model has."""
    unfilled: tuple[str, ...] = ()
    """Parameters that no stored tensor fills."""
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
    """Biases that start at zero and that no layer has stored; correct for a model that never had them."""
    at_zero_count: int = 0


class DryLoader(Protocol):
    """Loads checkpoints with one consumer; `runtime.dry_loading.WorkerDryLoader` implements it."""

    @property
    def name(self) -> str:
        """transformers, vllm or sglang."""
        ...

    def load(self, ckpt: Any) -> DryLoad:
        """Return the consumer's answer on a `Checkpoint`, typed as Any because its options in turn name this loader.

        Raises EvidenceError if its process cannot run.
        """
        ...
