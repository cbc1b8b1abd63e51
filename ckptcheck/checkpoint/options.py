"""What a user may ask of the rules of a scan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """verify_blobs: hash the files of the Hugging Face cache.

    near_zero, identical: thresholds for the rows of embeddings, with the defaults of NeMo-RL's
    ``tools/model_diagnostics/3.check_hf_model_embeddings_untrained.py``.
    consumers: who is asked what it makes of a quantized checkpoint, () for the usual ones.
    """

    verify_blobs: bool = False
    near_zero: float = 1e-10
    identical: float = 1e-8
    consumers: tuple[str, ...] = ()
