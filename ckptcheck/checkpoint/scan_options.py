"""What a user may ask of the rules of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ckptcheck.checkpoint.dry_load import DryLoader


class ScanOptions(msgspec.Struct, frozen=True):
    """Options of a scan that change what rules check.

    The defaults of `near_zero` and `identical` come from NeMo-RL,
    ``tools/model_diagnostics/3.check_hf_model_embeddings_untrained.py``.
    """

    verify_blobs: bool = False
    """Hash the files of the Hugging Face cache."""
    near_zero: float = 1e-10
    """Largest magnitude of an element of an embedding row that counts as zero."""
    identical: float = 1e-8
    """Standard deviation below which the elements of an embedding row count as one number."""
    base: str | None = None
    """The base model of an adapter; None: the folder beside it that its config names, if there is one."""
    consumers: tuple[str, ...] = ()
    """The consumers that a quantized checkpoint is evaluated for; () for the usual ones."""
    follow_links: bool = False
    """Follow links out of the checkpoint, to regular files."""
    dry_loaders: tuple[DryLoader, ...] = ()
    """The consumers that try to load the checkpoint without its values."""


DEFAULT_OPTIONS = ScanOptions()
