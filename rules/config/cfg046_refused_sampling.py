"""The model's generation_config.json has sampling settings with which no text is generated.

## What it checks
In generation_config.json, for settings that a request leaves out:

- `repetition_penalty` is a fraction above 0, or 1; `temperature` is from 0 to 2, and where the model samples (`do_sample`) a
  fraction above 0, or 1;
- `top_k` is a whole number of at least -1, and where the model samples not -1, which only vLLM takes for "all";
- `top_p` is above 0 and at most 1, `min_p` from 0 to 1;
- `num_beams` is at least 1.

## Why it matters
`generate` of transformers stops with a ValueError at each call. vLLM's server takes these settings from the file by default, and
refuses each request that does not give its own. The weights load, so the first request is the first to fail.
`--dry-load transformers` says which settings stop transformers when it loads the model.

## How to fix
Correct the value, or copy generation_config.json of the model this one was made from.

## When it can be wrong
A server that is started with `--generation-config vllm`, or requests that give all of them, do not read the file. A `temperature`
of 0 is fine for vLLM, and for transformers where it does not sample.

## Seen in
No public report of a file: each refusal was measured with both consumers. microsoft/graphrag#416 and Vision-CAIR/MiniGPT-4#200 are
requests that transformers refuses so.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.generation_settings import list_refused_at_request


@rule(
    "CFG046",
    "refused-sampling",
    severity="warning",
    when=lambda ckpt: not ckpt.is_partial and ckpt.generation_config is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    generation = ckpt.generation_config
    for key, reason, harm in list_refused_at_request(generation.value) if generation is not None else ():
        yield Problem(
            f"{key} {reason}; {harm}",
            file="generation_config.json",
            key=key,
            hint="correct the value, or copy it from the model's own generation_config.json",
        )
