"""The trainer's side of a watch: its own parameters, which tell whether what is sent is what is trained.

A tensor that is sent from the memory of its parameter costs a comparison of two addresses. Only what comes from elsewhere is
digested twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ckptcheck.runs.history.adapted_modules import find_adapted_module
from ckptcheck.runs.history.record import PLAINLY
from ckptcheck.watch.tensor_difference import describe_difference
from ckptcheck.watch.tensor_digests import SyncDigests

PREFIXES = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod.", "modules_to_save.default.")
"""What wrappers of torch and PEFT put into the name of a parameter."""
MOST, MOST_PLAIN = 4, 64
"""Tensors of a sync whose difference is described, which reads both of each: one tells the cause. More are described of plain
differences, as of a side that rounds, since each counts by itself."""
MOST_BYTES = 64 << 20
"""Largest tensor whose difference is described."""
ROWS, MODULES = 4, 3
"""How much of an adapter is held against what is sent: rows of a weight, and weights."""
SURE = 0.05
"""Largest standard error of how often an adapter is merged."""


class TrainerSide:
    """The parameters of a torch model that is trained, by the names under which they are sent."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._places: dict[str, tuple[Any, str]] = {}
        """Name → the module that has the parameter, and its name there: a trainer may replace a parameter."""
        self._adapters: dict[str, Any] = {}
        """Name of a weight → the module of PEFT that adapts it."""
        modules = dict(model.named_modules(remove_duplicate=False))
        adapted = {find_adapted_module(name) for name, _ in model.named_parameters()} - {""}
        for name, _ in model.named_parameters():
            path, _, last = name.rpartition(".")
            plain = clean_name(name)
            if find_adapted_module(name) or "original_module" in name or "lora_" in name:
                continue
            self._places[plain] = (modules[path], last)
            if plain.removesuffix(".weight") in adapted and last == "weight":
                self._adapters[plain] = modules[path.removesuffix(".base_layer")]

    @property
    def adapted(self) -> Collection[str]:
        """Names of the weights that have an adapter."""
        return self._adapters.keys()

    def find(self, name: str) -> Any:
        """Return the parameter that is sent by this name, None where there is none."""
        owner, last = self._places.get(name, (None, ""))
        return owner._parameters.get(last) if owner is not None else None

    def has(self, name: str) -> bool:
        """Whether a parameter is sent by this name."""
        return name in self._places

    def find_equal(self, name: str, tensor: Any) -> str:
        """Return the name of another parameter that has the values of a tensor, "" if none has, or if all are zero."""
        import torch

        for other in self._places if tensor.any() else ():
            parameter = self.find(other)
            is_like = parameter is not None and (parameter.shape, parameter.dtype) == (tensor.shape, tensor.dtype)
            if other != name and is_like and torch.equal(parameter.detach(), tensor.detach().to(parameter.device)):
                return other
        return ""

    def describe(self, name: str, ours: Any, theirs: Any) -> str:
        """Return how `theirs` differs from what is right by this name, as `describe_difference` does, or whose values it has."""
        other = self.find_equal(name, theirs)
        return f"the values of {other}" if other else describe_difference(ours, theirs)

    def list_trained(self) -> Iterator[str]:
        """Yield the names of what is trained: itself, or an adapter of it."""
        for name in self._places:
            parameter = self.find(name)
            if name in self._adapters or (parameter is not None and parameter.requires_grad):
                yield name

    def begin(self) -> SyncOfTrainer:
        """Begin a sync: call it before an adapter is merged for it."""
        return SyncOfTrainer(self, {name: self._adapters[name] for name in [*self._adapters][:MODULES]})


class SyncOfTrainer:
    """What one sync sends, held against the trainer's parameters."""

    def __init__(self, side: TrainerSide, adapters: dict[str, Any]) -> None:
        self.side, self._adapters = side, adapters
        self._digests = SyncDigests()
        self.altered: dict[str, str] = {}
        self.own: dict[str, Any] = {}
        """What was sent from the memory of its parameter."""
        self._bases = {name: _take_rows(side.find(name)) for name in adapters}
        self._products: list[tuple[float, float, float, int]] = []

    def keeps(self, name: str) -> bool:
        """Whether a tensor was sent from a parameter that has these values when the sync ends: no adapter is taken out of it."""
        return name in self.own and name not in self.side.adapted

    def compare(self, name: str, tensor: Any, held: Any) -> None:
        """Hold a tensor that is sent against its parameter. held: the dtype in which the engine holds it, None if not known."""
        parameter = self.side.find(name)
        if (
            parameter is None
            or not hasattr(tensor, "data_ptr")
            or parameter.shape != tensor.shape
            or not tensor.numel()
        ):
            return  # a parameter that is sharded over ranks has another shape or type here
        if hasattr(type(parameter), "full_tensor"):
            return
        if name in self._adapters:
            self._measure_merge(name, tensor)
        if tensor.data_ptr() == parameter.data_ptr() and tensor.dtype == parameter.dtype:
            self.own[name] = tensor
            return
        ours = parameter.detach()
        is_narrowed = held is not None and tensor.dtype.itemsize < min(held.itemsize, ours.dtype.itemsize)
        if not is_narrowed:
            ours = ours.to(tensor.dtype)
        self._digests.add(name, ours.to(tensor.device))
        if (
            may_describe(self.altered)
            and tensor.nbytes <= MOST_BYTES
            and (text := self.side.describe(name, ours, tensor))
        ):
            self.altered[name] = text

    def _measure_merge(self, name: str, tensor: Any) -> None:
        delta, base, sent = _compute_delta(self._adapters[name]), self._bases[name], _take_rows(tensor)
        if delta is None or base is None or sent is None or not delta.shape == base.shape == sent.shape:
            return
        moved = sent - base
        size = float((delta * delta).sum())
        factor = float((moved * delta).sum()) / size if size else 0.0
        rest = moved - factor * delta
        self._products.append((size, factor * size, float((rest * rest).sum()), delta.numel()))

    def finish(self, sent: dict[str, str], names: Iterable[str], *, is_whole: bool) -> dict[str, Any]:
        """Return the fields of the record.

        sent: name → digest. names: of all that was sent. is_whole: whether the watch saw all of it.
        """
        found, known = self._digests.fetch(), {*names}
        # names that are not those of parameters are of a map that nobody knows here
        is_whole = is_whole and all(self.side.has(name) for name in known)
        trained = {*self.side.list_trained()}
        size, product, rest, number = (
            (sum(column) for column in zip(*self._products, strict=True)) if self._products else (0, 0, 0, 0)
        )
        is_sure = size > 0 and (rest / number / size) ** 0.5 < SURE
        other = {name: value for name, value in found.items() if name in sent and sent[name] != value}
        is_known = other or sent.keys() <= found.keys() | self.own.keys()
        return {
            "trained": other if is_known and sent else None,
            "frozen": sorted(name for name in sent if self.side.find(name) is not None and name not in trained),
            "unsent": sorted(trained - known) if is_whole else [],
            "altered": self.altered,
            "merged": product / size if is_sure else None,
        }


def may_describe(described: Mapping[str, str]) -> bool:
    """Whether a sync may describe one more difference."""
    return len(described) < MOST_PLAIN and sum(not text.startswith(PLAINLY) for text in described.values()) < MOST


def clean_name(name: str) -> str:
    """Return the name under which a trainer sends a parameter: without what PEFT, FSDP and torch.compile add.

    >>> clean_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
    for prefix in PREFIXES:
        name = name.replace(prefix, "")
    return name


def _take_rows(tensor: Any) -> Any:
    """Return the first rows of a matrix as numbers in float32, None of anything else."""
    is_plain = (
        tensor is not None and tensor.dim() == 2 and tensor.is_floating_point() and not hasattr(tensor, "full_tensor")
    )
    return tensor.detach()[:ROWS].float().clone() if is_plain else None


def _compute_delta(layer: Any) -> Any:
    """Return the first rows of what a linear layer's adapters add, None for what is no plain LoRA (peft/tuners/lora/layer.py)."""
    if getattr(layer, "fan_in_fan_out", False) or getattr(layer, "lora_magnitude_vector", None):
        return None
    try:
        return sum(
            layer.scaling[name]
            * layer.lora_B[name].weight.detach()[:ROWS].float()
            @ layer.lora_A[name].weight.detach().float()
            for name in layer.active_adapters
            if name in layer.lora_A
        )
    except (AttributeError, RuntimeError, TypeError):
        return None
