"""Which settings of GPTQ a module is held against: ``dynamic`` gives some modules their own, or none.

GPTQModel, which writes such checkpoints, and transformers, which reads them with it, go by the module's own name
(`dynamic_get` of gptqmodel/quantization/config.py). vLLM and SGLang go by the name of the module that they build
(``qkv_proj``), so a pattern may be written for that. It counts where none takes the module's own name.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.faults import Held
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.dialects.base import Refused, Unknown
from ckptcheck.dialects.gptq import patterns
from ckptcheck.dialects.views import first_expert, views

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def held(ckpt: Checkpoint) -> Held | None:
    """Return what tells the schemes that a module may have; None where any of the declared ones will do."""
    quantization = ckpt.quantization
    if quantization is None or quantization.method != "gptq" or len(quantization.schemes) < 2:
        return None
    every, *special = quantization.schemes
    entries = patterns([scheme.targets[0] for scheme in special], like_regex=True)
    verdicts = [view.verdicts for view in views(ckpt).values()]

    @cache
    def scheme(name: str) -> Scheme | None:
        """Return the scheme of the first pattern that takes a name."""
        hit = entries.first(name)
        return special[hit] if hit is not None else None

    def choose(module: str) -> tuple[Scheme, ...]:
        try:
            if (own := scheme(module)) is not None:
                return (own,) if own.weights is not None or own.targets[0].startswith("-:") else ()
            built = [seen[name][0].name for seen in verdicts for name in (module, first_expert(module)) if name in seen]
            return tuple(dict.fromkeys([every, *(found for name in built if (found := scheme(name)) is not None)]))
        except (Refused, Unknown):  # nobody can tell
            return quantization.schemes

    return choose
