"""A tensor has a dtype that safetensors does not define.

## What it checks
The dtype is one of those of safetensors 0.8: `BOOL`, `U8` to `U64`, `I8` to `I64`, `F16`, `BF16`, `F32`, `F64`, `C64`,
`F8_E4M3`, `F8_E5M2`, `F8_E8M0`, `F8_E4M3FNUZ`, `F8_E5M2FNUZ`, `F4`, `F6_E2M3`, `F6_E3M2`. Names are case-sensitive.

## Why it matters
safetensors refuses the whole file, not only the tensor (`unknown variant`). The writer used another spelling, such as
`float16`, `FP8_E4M3` or `I4`.

## How to fix
Write the file again with a dtype of the list; 4-bit integers are stored packed, as `U8` or `I32`.

## When it can be wrong
A newer safetensors may define a dtype that 0.8 does not: files with it are sound there, but every program with an older
version refuses them. Use `--ignore ST007` until ckptcheck knows it too. A known but wrong dtype passes here (see ST005).

## Seen in
foundation-model-stack/fastsafetensors#69, alvarobartt/hf-mem#23
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST007",
    "unknown-dtype",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("unknown-dtype"):
        yield replace(
            problem, hint="write the tensor with a dtype that safetensors has; packed integers are stored as U8 or I32"
        )
    ckpt.require_headers()
