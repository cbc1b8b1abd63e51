"""transformers refuses the settings of the rotary embeddings.

## What it checks
Where transformers knows the `model_type`, in `rope_scaling` and `rope_parameters` of the config and its nested configs:

- the type is one that transformers computes
- the keys that the type needs are there, and above 0 (`factor` of linear, `low_freq_factor` of llama3, `long_factor` of longrope)
- every setting that transformers computes with is a number
- lists of factors (longrope) have one for each pair of channels that is rotated

## Why it matters
transformers stops when it builds the config or the model, and so do vLLM and SGLang, which read the config through it.

## How to fix
Copy the settings from the config of the model this one was trained or converted from. To stretch a context anew, follow the model
card: each type has its own keys.

## When it can be wrong
A config with its own class (`auto_map`) is not checked. Older versions of transformers only warned about a key that is not there.
Only `--dry-load transformers` shows what a class needs for single kinds of layers.

## Seen in
huggingface/transformers#32167, huggingface/transformers#32182: which missing keys of `rope_scaling` stop transformers
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.rope_settings import iter_wrong_rope
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule(
    "CFG050",
    "refused-rope",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    resolved = ckpt.config.resolved
    for part in resolved.parts if resolved is not None else ():
        for path, fault in iter_wrong_rope(part):
            yield Problem(
                f"{fault}; transformers stops when it builds or runs the model",
                file=ckpt.config.file,
                key=path,
                hint="copy the values from the model's own config",
            )
