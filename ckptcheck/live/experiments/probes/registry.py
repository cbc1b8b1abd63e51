"""All probes by name, as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.probes import requests, same_engine, semantics, two_sides, weight_updates
from ckptcheck.live.experiments.probes.environment import Probe

PROBES: Mapping[str, Probe] = {
    "decode": same_engine.compare_decoding,
    "semantics": semantics.compare_meanings,
    "padding": two_sides.pad_sequences,
    "routing": two_sides.compare_routing,
    "stale": weight_updates.ask_from_cache,
    "inflight": weight_updates.update_under_way,
    "length": requests.measure_length,
    "prefix-cache": same_engine.prefix_cache,
    "chunks": same_engine.chunks,
    "scheduling": same_engine.scheduling,
    "ends": requests.force_stop_tokens,
    "prompt": requests.compare_tokens,
    "head": two_sides.compare_heads,
    "graphs": same_engine.graphs,
    "inductor": same_engine.inductor,
    "casts": same_engine.casts,
}
"""Name → probe, in the default order: probes that share a set-up first, the most expensive last."""
COMPILING_PROBES = ("graphs", "inductor", "casts")
"""Probes that compile: minutes each, so only on demand."""


def select_probes(only: Sequence[str], without: Sequence[str]) -> dict[str, Probe]:
    """Return the requested probes. Raises CkptcheckError for an unknown name."""
    for name in (*only, *without):
        if name not in PROBES:
            raise CkptcheckError(f"there is no probe {name}", hint=f"choose one of {', '.join(PROBES)}")
    return {name: probe for name, probe in PROBES.items() if (not only or name in only) and name not in without}


def has_experts(ckpt: Checkpoint) -> bool:
    """Return whether the model has experts."""
    config = ckpt.config
    return config is not None and any(config.get(key) for key in EXPERTS)
