"""Names the set of weights that passes a watch by its content, as ``ckptcheck identity`` names a checkpoint."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.live.refit.weight_identity import name_weights, split_joined_weights
from ckptcheck.live.runtime.engines.codec import decode_sums, encode_pieces
from ckptcheck.live.runtime.trainers.base import Weight
from ckptcheck.values.shard_digest import add_sums

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class SetIdentity:
    """The identity of one side of a sync. Each tensor is summed where it lies, whole; torch's sums are read in `compute`."""

    def __init__(self) -> None:
        self._weights: dict[str, Weight] = {}
        self._sums: dict[str, list[Any]] = {}
        self._is_whole = True

    def add(self, name: str, tensor: Any, like: Checkpoint | None) -> None:
        """Add a torch tensor or a numpy array under the name that the trainer sends it by, and one that joins several in its parts.

        like: see `compute`. Raises CkptcheckError for what is no whole tensor, and for one that cannot be split; the set has no
        identity then.
        """
        from ckptcheck.live.runtime.worker.ckptcheck_worker.tensors import dtype_name

        if not hasattr(tensor, "dtype") or hasattr(tensor, "full_tensor"):
            self._is_whole = False
            raise CkptcheckError("it is a digest, or the shard of a rank")
        weight = Weight(name, tuple(tensor.shape), dtype_name(tensor))
        try:
            plain = split_joined_weights([weight], like)
        except EvidenceError:
            self._is_whole = False
            raise
        pieces = plain.pieces.get(name, ())
        self._weights |= {each.name: each for each in plain.weights}
        if not hasattr(tensor, "data_ptr"):
            from ckptcheck.values.shard_digest import sum_shard
            from ckptcheck.values.tensor_part import sum_part

            raw = tensor.tobytes() if pieces else b""
            found = [(each.tensor, sum_part(each, raw)) for each in pieces] or [(name, sum_shard(tensor))]
        else:
            from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import sum_pieces
            from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import sum_shard as sum_torch

            summed = sum_pieces(tensor, encode_pieces({name: pieces})[name])
            found = list(zip((each.tensor for each in pieces), summed, strict=True)) or [(name, sum_torch(tensor))]
        self._sums |= {plain_name: [] for plain_name, _ in found}
        for plain_name, sums in found:
            self._sums[plain_name].append(sums)

    def has_tensors_of(self, other: SetIdentity) -> bool:
        """Whether every tensor of another set is in this one, in the same shape."""
        return all(
            name in self._weights and self._weights[name].shape == weight.shape
            for name, weight in other._weights.items()
        )

    def compute(self, like: Checkpoint | None) -> str | None:
        """Return the identity; None where nothing was added, or a part of it could not be summed.

        like: a Hugging Face checkpoint of the same model, whose config says how the weights are called; None: as they were sent.
        """
        if not self._weights or not self._is_whole:
            return None
        sums = {
            name: reduce(add_sums, (each if isinstance(each, tuple) else decode_sums(each.tolist()) for each in found))
            for name, found in self._sums.items()
        }
        try:
            return name_weights("the weights", sums, list(self._weights.values()), like).identity
        except EvidenceError:
            return None
