"""A fake engine with copies of experts: a map of slots, a loader that writes by it, a balancer. All of them can be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import ExpertSlots
from ckptcheck.live.runtime.engines.digest import digest
from tests.doubles import fake_model as model
from tests.doubles.fake_engine import ReceivingEngine
from tests.doubles.fake_fault import Fault

if TYPE_CHECKING:
    from numpy.typing import NDArray

TENSOR = "model.layers.0.mlp.experts.w2_weight"
EXPERTS = 3


class BalancingFakeEngine(ReceivingEngine):
    """Three experts and some copies, a rank. What an expert is changes with the embedding."""

    def __init__(
        self, tensors: Mapping[str, NDArray[Any]], faults: Sequence[Fault] = (), *, copies: int, **more: Any
    ) -> None:
        self._size = EXPERTS + copies
        super().__init__(tensors, faults, **more)
        self.info.facts["redundant_experts"] = str(copies)  # type: ignore[index]

    def restart(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Load other tensors; every expert lies where it does at every start."""
        super().restart(tensors)
        self._map = [slot % EXPERTS for slot in range(self._size)]
        self._slots = [[self._expert(expert) for expert in self._map] for _ in self._ranks]

    def _expert(self, expert: int) -> str:
        return f"{expert}-{digest(self._true[model.EMBED])}"

    def _finish(self) -> None:
        super()._finish()
        places = [slot % EXPERTS for slot in range(self._size)] if any(self._has("places")) else self._map
        for rank, slots in enumerate(self._slots):
            for slot, expert in enumerate(places):
                kept = [fault for fault in self._has("copy") if int(fault.name) == slot and fault.rank in (None, rank)]
                if not kept:
                    slots[slot] = self._expert(expert)

    def digest_expert_slots(self) -> Mapping[tuple[int, str], ExpertSlots]:
        """Say what lies where."""
        return {} if any(self._has("mapless")) else {
            (rank, TENSOR): ExpertSlots(tuple(self._map), 0, tuple(slots)) for rank, slots in enumerate(self._slots)
        }  # fmt: skip

    def rebalance_experts(self) -> None:
        """Move every expert to another slot."""
        if any(self._has("unmoved")):
            return
        before = [dict(zip(self._map, slots, strict=True)) for slots in self._slots]
        self._map = [(expert + 1) % EXPERTS for expert in self._map]
        for own, slots in zip(before, self._slots, strict=True):
            slots[:] = [own[expert] for expert in self._map]
            if any(self._has("misplaced")):
                slots[0], slots[1] = slots[1], slots[0]
        self.is_misrouted = any(self._has("misrouted"))

    is_misrouted = False

    def _state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, head = super()._state()
        return (rows * 1.05 if self.is_misrouted else rows), head
