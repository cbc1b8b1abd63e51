"""Two configs beside the weights declare different quantizations.

## What it checks
If config.json and another file (hf_quant_config.json of ModelOpt, quantize_config.json of GPTQ, quant_config.json of AWQ) both
declare the quantization, they agree on the method, bits, group size, symmetry and activation order, on the quantization of the
key-value cache, and on the ignored modules.

## Why it matters
vLLM, SGLang and transformers read config.json first, and the other file only without it. TensorRT-LLM, GPTQModel and AutoAWQ read
the other one. One of them computes with a group size or a list of modules that is not the checkpoint's.

## How to fix
Delete the file that is out of date, or write it again.

## When it can be wrong
Where both name one algorithm of ModelOpt (`quant_algo`), another method is not reported: DeepSeek-V4's NVFP4 says `fp8`, which
its own code reads. Perhaps no consumer that you use reads the wrong file.

## Seen in
vllm-project/vllm#50214
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.quantization.schemes import Scheme, parse_schemes
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, join_truncated

CACHE = ("kv_cache_scheme", "kv_cache_quant_algo")
"""Settings that quantize the key-value cache; the second is ModelOpt's."""
NAMES = {"bits": "bits", "group_size": "group size", "symmetric": "symmetric", "actorder": "activation order"}


@rule(
    "QNT007",
    "configs-disagree",
    severity="warning",
    on="quantization",
    when=lambda ckpt: len(ckpt.quantization.declarations) > 1,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main, *others = ckpt.quantization.declarations
    for other in others:
        differences: list[str] = []
        if main.method is None:  # QNT006 reports it
            continue
        if (
            other.method != main.method
            and _algorithm_of(main) is not None
            and _algorithm_of(main) == _algorithm_of(other)
        ):
            continue  # ModelOpt's settings under the method of the model's own code, as in DeepSeek-V4's NVFP4
        if other.method != main.method:
            differences.append(f"the method is {other.method}, not {main.method}")
        else:
            differences += _schemes(parse_schemes(main), parse_schemes(other))
            mine, theirs = ({entry.text for entry in ckpt.quantization.ignored_by(one)} for one in (main, other))
            if mine and theirs and mine != theirs:
                differing = mine ^ theirs
                differences.append(
                    f"{count(len(differing), 'entry is', 'entries are')} in one list of ignored modules only: "
                    f"{join_truncated(differing)}"
                )
            mine_kv, their_kv = (any(one.value.get(key) for key in CACHE) for one in (main, other))
            if mine_kv != their_kv:
                differences.append(f"the key-value cache is {'quantized' if their_kv else 'not quantized'}")
        if differences:
            yield Problem(
                f"{'; '.join(differences)}; {main.file} {main.key} differs, and engines read that first",
                file=other.file,
                key=other.key or None,
                hint="delete the file that is out of date, or write it anew",
            )


def _algorithm_of(declared: Declaration) -> object:
    """Return the algorithm that ModelOpt names, at the top or below `quantization`."""
    nested = declared.value.get("quantization")
    return declared.value.get("quant_algo") or (nested.get("quant_algo") if isinstance(nested, dict) else None)


def _schemes(main: tuple[Scheme, ...], other: tuple[Scheme, ...]) -> Iterator[str]:
    """Yield the settings that differ, if each config has one scheme for all modules."""
    main, other = (tuple(scheme for scheme in side if scheme.weights is not None) for side in (main, other))
    if len(main) != 1 or len(other) != 1:
        return
    for name, words in NAMES.items():
        mine, theirs = getattr(main[0].weights, name), getattr(other[0].weights, name)
        if mine is not None and theirs is not None and mine != theirs:
            yield f"{words} is {theirs}, not {mine}"
