"""The weights are packed or named for MLX, which no other loader reads.

## What it checks
The checkpoint is not one of MLX: config.json has no `quantization` with a `group_size` and `bits`, which is how MLX declares
weights that it packed into U32, with `scales` and `biases` beside them; and the metadata of the shards does not say
`"format": "mlx"` while the experts are stacked under MLX's name `switch_mlp`.

## Why it matters
Such a checkpoint is sound for MLX. transformers stops at its quantization config or at the shapes; vLLM and SGLang do not know the
method. So a trainer cannot start from it, and most rules about the model have nothing to look at.

## How to fix
Take the checkpoint that it was made of. Or dequantize it with MLX: `mlx_lm.convert --hf-path MODEL --mlx-path OUT --dequantize`;
that does not bring back what the quantization lost, and it leaves stacked experts stacked.

## When it can be wrong
The checkpoint is meant for MLX: `--ignore SET008`.

## Seen in
The repositories of mlx-community, whose configs name the architectures of transformers.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule("SET008", "mlx-weights", severity="warning", on="config", when=lambda ckpt: ckpt.has_shards)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    if not ckpt.is_mlx:
        return
    packed = ckpt.quantization is not None and ckpt.quantization.method == "mlx"
    what = "packed" if packed else "named"
    target = ckpt.target.rstrip("/")
    yield Problem(
        f"this is a checkpoint of MLX, whose weights are {what} as transformers, vLLM and SGLang do not read them",
        file=ckpt.config.file if packed else next(iter(ckpt.model_files)),
        key="quantization" if packed else "__metadata__.format",
        hint=f"mlx_lm.convert --hf-path {target} --mlx-path {target}-dequantized --dequantize"
        if packed
        else "take the checkpoint that it was made of",
    )
