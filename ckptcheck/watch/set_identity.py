"""Names the set of weights that passes a watch by its content, as ``ckptcheck identity`` names a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.refit.weight_identity import name_weights
from ckptcheck.runtime.engines.codec import decode_sums
from ckptcheck.runtime.trainers.base import Weight

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class SetIdentity:
    """The identity of one side of a sync. Each tensor is summed where it lies, whole; torch's sums are read in `compute`."""

    def __init__(self) -> None:
        self._weights: dict[str, Weight] = {}
        self._sums: dict[str, Any] = {}
        self._is_whole = True

    def add(self, name: str, tensor: Any) -> None:
        """Add a torch tensor or a numpy array under the name that the trainer sends it by.

        Raises CkptcheckError for what is no whole tensor; the set has no identity then.
        """
        from ckptcheck.runtime.worker.ckptcheck_worker.tensors import dtype_name

        if not hasattr(tensor, "dtype") or hasattr(tensor, "full_tensor"):
            self._is_whole = False
            raise CkptcheckError("it is a digest, or the shard of a rank")
        if hasattr(tensor, "data_ptr"):
            from ckptcheck.runtime.worker.ckptcheck_worker.shard_digest import sum_shard as sum_torch

            self._sums[name] = sum_torch(tensor)
        else:
            from ckptcheck.values.shard_digest import sum_shard

            self._sums[name] = sum_shard(tensor)
        self._weights[name] = Weight(name, tuple(tensor.shape), dtype_name(tensor))

    def has_tensors_of(self, other: SetIdentity) -> bool:
        """Whether every tensor of another set is in this one, in the same shape."""
        return all(
            name in self._weights and self._weights[name].shape == weight.shape
            for name, weight in other._weights.items()
        )

    def compute(self, like: Checkpoint | None) -> str | None:
        """Return the identity; None where nothing was added, or where tensors join several that the checkpoint has apart.

        like: a Hugging Face checkpoint of the same model, whose config says how the weights are called; None: as they were sent.
        """
        if not self._weights or not self._is_whole:
            return None
        sums = {
            name: each if isinstance(each, tuple) else decode_sums(each.tolist()) for name, each in self._sums.items()
        }
        try:
            return name_weights("the weights", sums, list(self._weights.values()), like).identity
        except EvidenceError:
            return None
