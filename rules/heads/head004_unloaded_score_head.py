"""A reward or value head is stored under a name that its architecture does not load.

## What it checks
A classifier architecture finds its head as `score` or `classifier`; a plain language-model architecture loads no such
head at all. TRL's `v_head` beside a language model is what TRL's own class loads, and is left out.

## Why it matters
transformers starts `score` from random numbers and leaves the trained head out, with a warning nobody reads. With a
language-model architecture the reward model answers with text in place of a score.

## How to fix
Rename the tensor to what the architecture loads, or load the model with the class that saved it (TRL's value-head
model, OpenRLHF's `get_llm_for_sequence_regression`).

## When it can be wrong
A critic that is only ever loaded by the trainer that wrote it is fine as it is: ignore the rule there, with that
reason.

## Seen in
OpenRLHF/OpenRLHF#542 (Llama-3-8b-rm-mixture)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.heads import is_language_model, is_scorer
from ckptcheck.phrase import few

LOADED = ("score.", "classifier.", "model.score.", "qa_outputs.", "classification_head.")


@rule(
    "HEAD004",
    "unloaded-score-head",
    severity="warning",
    when=lambda ckpt: (
        bool(ckpt.anatomy.scores) and (is_scorer(ckpt.config) or is_language_model(ckpt.config)) and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    scorer = is_scorer(ckpt.config)
    unloaded = [
        name
        for name in ckpt.anatomy.scores
        if not (scorer and name.startswith(LOADED)) and not (not scorer and name.startswith("v_head."))
    ]
    if unloaded and not (scorer and len(unloaded) < len(ckpt.anatomy.scores)):
        loads = "loads its head as score.weight" if scorer else "loads no such head"
        yield Problem(
            f"{ckpt.config.architecture} {loads}, so transformers leaves {few(unloaded)} out",
            file=ckpt.holders[unloaded[0]],
            key=unloaded[0],
            hint="rename the tensor"
            if scorer
            else "save with an architecture that has a head, such as …ForSequenceClassification",
        )
