"""The parallel layouts of a critic in megatron-core, and the settings from which the worker builds one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron_settings import megatron_settings

SIZES = re.compile(r"(?:(?:tp|pp|vpp|cp|ep)[1-9]\d?)+")
SIZE = re.compile(r"(tp|vpp|pp|cp|ep)(\d+)")
REFUSED = {
    "cp": "context parallelism needs Transformer Engine's attention: megatron-core's own stops at it",
    "ep": "expert parallelism spreads the batch over ranks as well, and ckptcheck compares gradients of one batch",
}


@dataclass(frozen=True, slots=True)
class CriticLayout:
    """Sizes of tensor, pipeline and virtual pipeline parallelism.

    >>> str(CriticLayout.parse("pp2vpp2")), str(CriticLayout())
    ('pp2vpp2', 'tp1')
    """

    tp: int = 1
    pp: int = 1
    vpp: int = 1

    @classmethod
    def parse(cls, text: str) -> CriticLayout:
        """Read a layout: tp2, pp2, tp2pp2, pp2vpp2. Raises CkptcheckError."""
        if not SIZES.fullmatch(text.lower()):
            raise CkptcheckError(f"{text!r} is no layout", "write it as tp2, pp2, tp2pp2 or pp2vpp2")
        sizes = {name: int(size) for name, size in SIZE.findall(text.lower())}
        for name, reason in REFUSED.items():
            if sizes.pop(name, 1) > 1:
                raise CkptcheckError(f"{text} is not run: {reason}", f"leave {name} out")
        if sizes.get("vpp", 1) > 1 and sizes.get("pp", 1) < 2:
            raise CkptcheckError(f"{text} has virtual stages of one stage", "write it as pp2vpp2")
        return cls(**sizes)

    def __str__(self) -> str:
        """Return the sizes above 1 as `parse` reads them."""
        sizes = (("tp", self.tp), ("pp", self.pp), ("vpp", self.vpp))
        return "".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"


DEFAULT_LAYOUTS = (CriticLayout(), CriticLayout(tp=2), CriticLayout(pp=2), CriticLayout(pp=2, vpp=2))


def critic_settings(config: Config | None, layout: CriticLayout, target: str, *, bias: bool) -> dict[str, Any]:
    """Return the settings of a critic in float32, as JSON. bias: whether its head has one.

    Raises CkptcheckError for a model that megatron-core cannot hold, or not in this layout.
    """
    settings = megatron_settings(config, ParallelLayout(layout.tp, layout.pp), "float32", target, allow_critic=True)
    if "num_moe_experts" in settings["config"] and layout.tp > 1:
        raise CkptcheckError(
            f"{target} has experts, which Megatron trains under tensor parallelism only on shares of a sequence"
        )
    layers = settings["config"]["num_layers"]
    if layers % (layout.pp * layout.vpp):
        raise CkptcheckError(f"{target} has {layers} layers, which {layout} cannot share evenly")
    settings["layout"]["vpp"] = layout.vpp
    settings["value_head"] = {"bias": bias}
    # A critic has no LM head that its embedding could be tied to.
    return settings | {"tied": False}
