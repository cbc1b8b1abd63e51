"""A module is stored quantized and a consumer builds it unquantized, or the reverse.

## What it checks
Every quantized weight is in a module that vLLM and SGLang (or the consumers that `--consumers` names) build quantized from this
config, and every other weight in one that they leave unquantized. That depends on its targets, its ignore list, and on modules that
a consumer never quantizes, such as the router of Qwen3-MoE in SGLang. The tests of this project compare how each version matches a
list with its real code.

## Why it matters
The consumer has no place for the stored tensors, or allocates packed weights and scales that nothing fills.
- vLLM stops at the first one.
- SGLang stops in some models (`q_proj` of Qwen3). In most it drops them, with a warning (Llama) or without a line in the log
  (Qwen3-MoE), and serves uninitialized memory.
- transformers starts the module from random numbers.
- If the weight keeps its name, as in FP8, the numbers are cast without a scale, a thousand times too large.

Where no weight is quantized, the config was left behind by dequantizing, or by a training in BF16.

The usual case is a router: transformers keeps it in full precision, whether or not the ignore list has it. So the checkpoint loads
there without a warning, and fails in the engine.

## How to fix
- Stored quantized: remove the entry from the list, or make it exact: `re:.*mlp.gate` also matches `mlp.gate_proj`, `re:.*mlp.gate$`
  does not. Or quantize again and leave the module unquantized.
- Stored unquantized: add the module to the ignore list, under the name that it has in the engine. `ckptcheck scan --fix` writes a
  list that all chosen consumers read in the same way.

Where the list leaves the module out by the name of its parameter (`re:.*mlp.gate.weight$`), as slime's guide recommends, and SGLang
builds it as stored, the finding is a warning: slime's trainer and its engine read the list as meant, and vLLM does not. With
`--consumers vllm` it is an error; `ckptcheck preflight` judges by the job's own engine.

## When it can be wrong
The checkpoint may not be made for this consumer. Name yours with `--consumers`. What an engine builds for an architecture that
this version of ckptcheck has not looked at, or has not built, is not known: the rule is then skipped and says so. Of the modules
of an architecture that was never built, it judges those of the language model's layers, and those that an entry ignores under the
names to which the engine's class renames the stored ones (`re:visual.*` in vLLM for `model.visual`), or as a part that sees or
hears with anything in front (`re:.*vision_tower.*`).
Of the models that see or hear beside a language model, those are recorded for SGLang whose class names what it renames (Qwen2-VL,
Qwen2.5-VL, Qwen3-VL and its experts); the others rename while they load, which `--dry-load sglang` follows.

## Seen in
vllm-project/llm-compressor (an example whose `re:.*mlp.gate` has no `$`), vllm-project/vllm (Qwen3-MoE's gate not in `ignore`),
unslothai/unsloth#3421 (a config left behind), sgl-project/sglang#28018, sgl-project/sglang#24927,
vllm-project/llm-compressor#2597, vllm-project/llm-compressor#2641
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.effects import describe_mismatches
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_mismatches, require_known_architecture


@rule(
    "QNT020",
    "mismatched-module",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    is_plain = ckpt.quantization is not None and not any(
        way.is_quantized or way.companions for way in ckpt.quantization.storages
    )
    for problem in describe_mismatches(ckpt, find_mismatches(ckpt, quantized=False)) if is_plain else ():
        yield structs.replace(
            problem,
            message=f"no weight is quantized, but quantization_config says so: {problem.message.partition(': ')[2]}",
            key="quantization_config",
            hint="if the weights were dequantized or trained, remove quantization_config; if they are codes (VAL036), export again "
            "with their scales",
        )
        return
    for quantized in (True, False):
        yield from describe_mismatches(ckpt, find_mismatches(ckpt, quantized=quantized))
    require_known_architecture(ckpt)
