"""A reward or value head is stored under a name that its architecture does not load.

## What it checks
A classifier of transformers finds its head as `score` or `classifier`; a plain language-model architecture loads no such head at
all. What a class that is not transformers' own loads is not known, and so it is left out. TRL's `v_head` beside a language model
is what TRL's own class loads, and is left out too.

## Why it matters
transformers initializes `score` with random numbers and omits the trained head, with a warning that is easily missed. With a
language-model architecture, the reward model answers with text instead of a score.

## How to fix
Rename the tensor to the name that the architecture loads, or load the model with the class that saved it (TRL's value-head
model, OpenRLHF's `get_llm_for_sequence_regression`).

## When it can be wrong
If only the trainer that wrote the critic loads it, it works as it is: ignore the rule there, with that reason.

## Seen in
OpenRLHF/OpenRLHF#542 (Llama-3-8b-rm-mixture)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import find_likely_heads, is_language_model, is_scorer, score_head_modules
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.text.formatting import join_truncated

LOADED = ("score.", "classifier.", "model.score.", "qa_outputs.", "classification_head.")


@rule(
    "HEAD004",
    "unloaded-score-head",
    severity="warning",
    on="config",
    when=lambda ckpt: (
        bool(ckpt.components.score_head_tensors or is_scorer(ckpt.config))
        and bool(score_head_modules(ckpt.config.architecture) or is_language_model(ckpt.config))
        and not ckpt.is_partial
    ),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    scorer, components = is_scorer(ckpt.config), ckpt.components
    own = score_head_modules(ckpt.config.architecture)
    loaded = (*LOADED, *(f"{head.partition('.')[0]}." for head in own)) if scorer else ("v_head.",)
    names = components.score_head_tensors or (
        find_likely_heads(components) if "auto_map" not in ckpt.config.value else ()
    )
    unloaded = [name for name in names if not name.startswith(loaded)]
    if unloaded and not (scorer and len(unloaded) < len(names)):
        loads = f"loads its head as {own[0]}" if scorer else "loads no such head"
        yield Problem(
            f"{ckpt.config.architecture} {loads}, so transformers omits {join_truncated(unloaded)}",
            file=ckpt.tensor_to_file[unloaded[0]],
            key=unloaded[0],
            hint="rename the tensor"
            if scorer
            else "save with an architecture that has a head, such as …ForSequenceClassification",
        )
