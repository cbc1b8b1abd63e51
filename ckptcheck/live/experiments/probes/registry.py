"""All probes by name, as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.probes import (
    compilation,
    decode,
    inflight,
    length,
    lm_head_precision,
    padding,
    routing,
    semantics,
    setups,
    stale_cache,
    stop_tokens,
    tokenization,
)
from ckptcheck.live.experiments.probes.environment import Probe

PROBES: Mapping[str, Probe] = {
    "decode": decode.probe,
    "semantics": semantics.probe,
    "padding": padding.probe,
    "routing": routing.probe,
    "stale": stale_cache.probe,
    "inflight": inflight.probe,
    "length": length.probe,
    "prefix-cache": setups.prefix_cache,
    "chunks": setups.chunks,
    "scheduling": setups.scheduling,
    "ends": stop_tokens.probe,
    "prompt": tokenization.probe,
    "head": lm_head_precision.probe,
    "graphs": compilation.graphs,
    "inductor": compilation.inductor,
    "casts": compilation.casts,
}
"""Name → probe, in the default order: probes that share a set-up first, the most expensive last."""


def select_probes(only: Sequence[str], without: Sequence[str]) -> dict[str, Probe]:
    """Return the requested probes. Raises CkptcheckError for an unknown name."""
    for name in (*only, *without):
        if name not in PROBES:
            raise CkptcheckError(f"there is no probe {name}", hint=f"there are {', '.join(PROBES)}")
    return {name: probe for name, probe in PROBES.items() if (not only or name in only) and name not in without}


def has_experts(ckpt: Checkpoint) -> bool:
    """Return whether the model has experts."""
    config = ckpt.config
    return config is not None and any(config.get(key) for key in EXPERTS)
