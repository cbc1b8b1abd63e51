"""A stored tensor is one that the model does not read.

## What it checks
Every stored tensor has a place in the model that the config describes. An error where that changes what the model computes:
- layers beyond `num_hidden_layers`, or beyond the depth of an encoder; layers of multi-token prediction are none, by their names
  (`eh_proj`, `enorm`, `mtp`, `nextn`, …) or by the number that the config gives;
- experts beyond the declared number, in single tensors or fused;
- what a setting that is off leaves out (`attention_bias`, `mlp_bias`, …), and biases that the architecture never has.

A warning for modules that the architecture does not have, and for a reward or value head under a name that its class does not
load. An info for a language-modelling head in a model that scores. CFG003 reports a module that has taken a missing one's place.

## Why it matters
transformers leaves the tensors out with an easily missed warning, SGLang without one, and vLLM mostly stops with a KeyError. The
model then computes another function than the one that was trained.

## How to fix
Correct the setting, or find out what wrote the tensors: an adapter that was not merged, another model's tensors, a wrapper's
prefix, an exporter that numbers experts per rank.

## When it can be wrong
With `--dry-load transformers` the loader itself answers, and this rule is skipped. Without it, use `--ignore CFG004` where
- layers of multi-token prediction have the names of ordinary ones and the config does not count them;
- the model's own code, under a `model_type` of transformers, reads the tensors; so does the trainer that wrote a critic's head;
- an engine that balances load saved copies of busy experts after the real ones;
- biases are all zero: left out they change nothing (AutoGPTQ's are known).

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (experts), huggingface/transformers#47410, THUDM/slime#2270, sgl-project/sglang#38616 (modules),
hiyouga/LlamaFactory#3721 (biases), OpenRLHF/OpenRLHF#542 (head)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.find_faults import iter_problems


@rule("CFG004", "surplus-tensor", severity="error", when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from iter_problems(ckpt, "surplus")
