"""What every trainer needs to start: where the source's tensors lie, and a process that loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.host import Host
from ckptcheck.host.trouble import VerbError

BUFFERS = (".rotary_emb.inv_freq", ".attention.bias", ".attn.bias", ".attn.masked_bias")
"""Tensors that old checkpoints hold and no model loads."""

PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for each other sleep. Spinning, they take the cores that other ranks and the engine compute on."""


def tensor_files(ckpt: Checkpoint) -> dict[str, Path]:
    """Return name → the safetensors file that holds it, for every tensor that a model loads.

    A tied head that is stored all the same is left out. Raises CkptcheckError for a source that is not on this disk,
    is quantized, or cannot be read.
    """
    folder = ckpt.source.local.resolve() if ckpt.source.local is not None else None  # the far side is elsewhere
    if folder is None:
        raise CkptcheckError(f"{ckpt.target} is not on this disk, and a trainer loads from there")
    broken = [name for name in ckpt.loaded if name not in ckpt.shards or not ckpt.shards[name].readable]
    if broken or not ckpt.holders:
        raise CkptcheckError(f"{broken[0] if broken else ckpt.target} cannot be read", hint="ckptcheck scan says why")
    if ckpt.config is not None and ckpt.config.get("quantization_config"):
        raise CkptcheckError(f"{ckpt.target} is quantized, and a trainer holds plain weights")
    tied = ckpt.config is not None and ckpt.config.get("tie_word_embeddings") is True
    return {
        name: folder / file
        for name, file in ckpt.holders.items()
        if not name.endswith(BUFFERS) and not (tied and name == "lm_head.weight")
    }


def loaded(
    host: Host | None,
    python: Path,
    module: str,
    variables: Mapping[str, str],
    exchange: Exchange,
    request: Mapping[str, Any],
    *,
    log: Path | None,
    timeout: float | None,
    scratch: Sequence[Path] = (),
) -> tuple[Host, dict[str, Any]]:
    """Start a process, unless one is given that runs this module already, have it load, and return what it says.

    scratch: folders of the caller's that are removed, as is the exchange's, if the caller is killed.
    A process that was given lives on where it cannot load; one that was started here does not.
    """
    own = host is None
    if host is None:
        host = Host(
            python,
            module,
            name=module.rpartition(".")[2].removesuffix("_trainer"),
            env=PATIENT | dict(variables),
            log=log,
            scratch=(exchange.folder, *scratch),
            start_timeout=timeout,
        )
    try:
        told: dict[str, Any] = host.call("load", timeout=timeout, **request)
    except VerbError:
        if own:
            host.close()
        raise
    except BaseException:
        host.close(0)
        raise
    return host, told


def placed(told: Mapping[str, Any]) -> dict[str, str]:
    """Return, as facts of a trainer, its torch and where it computes. gpus: UUID of each rank's; sees: all it could lend to."""
    gpus, sees = [gpu for gpu in told.get("gpus", ()) if gpu], told.get("sees", ())
    device = "cuda" if gpus else "cpu"
    return {"torch": told["torch"], "device": device, "gpus": ",".join(gpus), "sees": ",".join(sees)}
