"""An engine has no kernel for the declared scheme, or needs a setting that it lacks.

## What it checks
vLLM 0.32 does not refuse the scheme at its start. It refuses:
- GPTQ with `desc_act` and groups, with other bits than 4 and 8, or asymmetric;
- AWQ with other bits than 4;
- fp8 without `activation_scheme`, or in blocks with a static one.

## Why it matters
vLLM stops when it reads the config. transformers with GPTQModel or AutoAWQ still loads such checkpoints, so a trainer accepts what
its rollout engine refuses.

## How to fix
Quantize again with a scheme that both read, or add the setting.

## When it can be wrong
It does not matter if you do not use vLLM, or use a version that still accepts the scheme.

## Seen in
vllm/model_executor/layers/quantization auto_gptq.py, auto_awq.py, fp8.py (0.32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.views import QuantizedCheckpoint

METHODS = ("gptq", "awq", "fp8")


@rule(
    "QNT009",
    "engine-refuses-scheme",
    severity="warning",
    on="quantization",
    when=lambda ckpt: ckpt.quantization.method in METHODS,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.declarations[0]
    settings = _fp8(main) if main.method == "fp8" else _packed(main, ckpt.quantization.schemes)
    for key, text in settings:
        yield Problem(
            f"{text}; vLLM 0.32 refuses it", file=main.file, key=key, hint="quantize again, or correct the setting"
        )


def _fp8(main: Declaration) -> Iterator[tuple[str, str]]:
    scheme = main.value.get("activation_scheme")
    key = main.key_path("activation_scheme")
    if scheme not in ("static", "dynamic"):
        yield key, "there is no activation_scheme" if scheme is None else f"activation_scheme is {scheme!r:.30}"
    elif scheme == "static" and main.value.get("weight_block_size") is not None:
        yield key, "activation_scheme is static, but weights in blocks need a dynamic one"


def _packed(main: Declaration, schemes: tuple[Scheme, ...]) -> Iterator[tuple[str, str]]:
    for scheme in schemes:
        weights = scheme.weights
        # GPTQ's `dynamic` excludes these modules.
        if weights is None:
            continue
        if main.method == "awq":
            if weights.bits not in (4, None):
                yield scheme.key, f"AWQ has {weights.bits} bits"
            continue
        if weights.actorder is True and weights.group_size != -1:
            yield scheme.key, f"desc_act is true with groups of {weights.group_size}"
        if weights.bits is not None and (weights.bits not in (4, 8) or not weights.symmetric):
            yield scheme.key, f"GPTQ has {weights.bits} bits and is {'' if weights.symmetric else 'a'}symmetric"
