"""Two configs beside the weights say different things about the quantization.

## What it checks
Where config.json and hf_quant_config.json (ModelOpt), quantize_config.json (GPTQ) or quant_config.json (AWQ) both declare the
quantization, they agree on the method, bits, group size, symmetry and order of activations, on the quantization of the
key-value cache and on the modules left alone.

## Why it matters
vLLM, SGLang and transformers read config.json first and the other file only without it; TensorRT-LLM, GPTQModel and AutoAWQ
read the other one. One of them computes with a group size or a list of modules that is not the checkpoint's.

## How to fix
Delete the file that is out of date, or write it anew.

## When it can be wrong
Both files may be read by nobody who uses the one that is wrong.

## Seen in
vllm-project/vllm#50214
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.schemes import Scheme, schemes_of
from ckptcheck.phrase import count, few

NAMES = {"bits": "bits", "group_size": "group size", "symmetric": "symmetric", "actorder": "activation order"}


@rule(
    "QNT007",
    "configs-disagree",
    severity="warning",
    when=lambda ckpt: ckpt.quantization is not None and len(ckpt.quantization.declared) > 1,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    main, *others = ckpt.quantization.declared
    for other in others:
        said: list[str] = []
        if other.method != main.method:
            said.append(f"the method is {other.method}, not {main.method}")
        else:
            said += _schemes(schemes_of(main), schemes_of(other))
            mine, theirs = ({entry.text for entry in ckpt.quantization.ignored_by(one)} for one in (main, other))
            if mine and theirs and mine != theirs:
                differing = mine ^ theirs
                said.append(
                    f"{count(len(differing), 'entry is', 'entries are')} in one list of ignored modules only: {few(differing)}"
                )
            mine_kv, their_kv = (ckpt.quantization.kv_cache_of(one) for one in (main, other))
            if (mine_kv is None) != (their_kv is None):
                said.append(f"the key-value cache is {'quantized' if their_kv else 'not quantized'}")
        if said:
            yield Problem(
                f"{'; '.join(said)}; {main.file} {main.key} says otherwise, and engines read that first",
                file=other.file,
                key=other.key or None,
                hint="delete the file that is out of date, or write it anew",
            )


def _schemes(main: tuple[Scheme, ...], other: tuple[Scheme, ...]) -> Iterator[str]:
    """Compare the settings of all modules, where each side has one such scheme."""
    main, other = (tuple(scheme for scheme in side if scheme.weights is not None) for side in (main, other))
    if len(main) != 1 or len(other) != 1:
        return
    for name, words in NAMES.items():
        mine, theirs = getattr(main[0].weights, name), getattr(other[0].weights, name)
        if mine is not None and theirs is not None and mine != theirs:
            yield f"{words} is {theirs}, not {mine}"
