"""The parallel layouts of a critic in megatron-core, and the settings from which the worker builds one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron_settings import megatron_settings

SIZES = re.compile(r"(?:(?:tp|pp|vpp|cp|ep)[1-9]\d?)+(?:sp)?")
SIZE = re.compile(r"(tp|vpp|pp|cp|ep)(\d+)")


@dataclass(frozen=True, slots=True)
class CriticLayout:
    """Sizes of tensor, pipeline, virtual pipeline and expert parallelism, and whether tensor-parallel ranks share sequences (sp).

    >>> str(CriticLayout.parse("pp2vpp2")), str(CriticLayout.parse("tp2sp")), str(CriticLayout())
    ('pp2vpp2', 'tp2sp', 'tp1')
    """

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    sp: bool = False

    @classmethod
    def parse(cls, text: str) -> CriticLayout:
        """Read a layout: tp2, tp2sp, pp2, tp2pp2, pp2vpp2. Raises CkptcheckError."""
        if not SIZES.fullmatch(text.lower()):
            raise CkptcheckError(f"{text!r} is no layout", "write it as tp2, tp2sp, pp2, tp2pp2 or pp2vpp2")
        sizes = {name: int(size) for name, size in SIZE.findall(text.lower())}
        if sizes.pop("cp", 1) > 1:
            raise CkptcheckError(
                f"{text} is not run: context parallelism needs Transformer Engine's attention, and megatron-core's own refuses it",
                "leave cp out",
            )
        if sizes.get("vpp", 1) > 1 and sizes.get("pp", 1) < 2:
            raise CkptcheckError(f"{text} has virtual stages, but only one pipeline stage", "write it as pp2vpp2")
        if (sp := text.lower().endswith("sp")) and sizes.get("tp", 1) < 2:
            raise CkptcheckError(
                f"{text} has sequence parallelism, which needs at least 2 tensor-parallel ranks", "write it as tp2sp"
            )
        return cls(**sizes, sp=sp)

    def __str__(self) -> str:
        """Return the sizes above 1 as `parse` reads them."""
        sizes = (("tp", self.tp), ("pp", self.pp), ("vpp", self.vpp), ("ep", self.ep))
        return "".join(f"{name}{size}" for name, size in sizes if size > 1) + "sp" * self.sp or "tp1"


DEFAULT_LAYOUTS = (
    CriticLayout(),
    CriticLayout(tp=2),
    CriticLayout(tp=2, sp=True),
    CriticLayout(pp=2),
    CriticLayout(pp=2, vpp=2),
    CriticLayout(ep=2),
)


def critic_settings(
    config: Config | None, layout: CriticLayout, target: str, *, bias: bool, length: int
) -> dict[str, Any]:
    """Return the settings of a critic in float32, as JSON. bias: whether its head has one. length: tokens of a sequence.

    Raises CkptcheckError for a model that megatron-core cannot hold, or not in this layout.
    """
    settings = megatron_settings(
        config, ParallelLayout(layout.tp, layout.pp, layout.ep), "float32", target, allow_critic=True
    )
    if "num_moe_experts" in settings["config"] and layout.tp > 1 and not layout.sp:
        raise CkptcheckError(
            f"{target} has experts, which Megatron trains with tensor parallelism only if sequence parallelism is on",
            f"write the layout as {layout}sp",
        )
    if layout.sp and length % layout.tp:
        raise CkptcheckError(f"{layout} cannot share sequences of {length} tokens evenly")
    layers = settings["config"]["num_layers"]
    if layers % (layout.pp * layout.vpp):
        raise CkptcheckError(f"{target} has {layers} layers, which {layout} cannot share evenly")
    settings["layout"] |= {"vpp": layout.vpp, "sp": layout.sp}
    settings["value_head"] = {"bias": bias}
    # A critic has no LM head that its embedding could be tied to.
    return settings | {"tied": False}
