"""A parameter that the model has is not stored.

## What it checks
A stored tensor fills every parameter of the model. Each cause is one finding, without its consequences:
- **layers**: as many as the config declares (`num_hidden_layers`, `encoder_layers`, `vision_config.depth`, …), without a gap;
- **experts**: as many in each layer as the config declares, each with all its weights, in single tensors or fused; and the
  router's `e_score_correction_bias` where `topk_method` is `noaux_tc`, and other buffers that training changes (`layer_scalar` of
  Gemma 4), where the class saves them;
- **parts of a layer**: what its siblings have, in any architecture. Layers are siblings if every per-layer list of the config
  (`layer_types`, `mlp_only_layers`, …) gives them the same entry. In architectures of transformers also the tensors of every layer,
  which shows a name that an exporter dropped from all layers, or from one of two, and all that makes a type of layer
  (`linear_attn` in each layer of "linear_attention"), and shared experts that the config counts;
- **switches**: what a setting adds (`attention_bias`, `mlp_bias`, `use_qk_norm`, `q_lora_rank`, …), also by its default;
- **both ends**: the token embedding, an untied output head, the head of a classifier, reward model or critic; a declared layer of
  multi-token prediction (a warning);
- **whole parts**: a tower that a section of the config describes (`vision_config`, `audio_config`). Where all of it is stored
  under another prefix, the message names that prefix. In architectures of unknown code this is a warning, and so is a projector
  that is missing between a tower and a language model of other widths;
- **anything else** that every model of the architecture has: norms, position tables, towers, projectors, poolers.

What transformers builds, and by which renamings it finds older names, was learned by building every architecture. Quantized
weights count under their packed names.

## Why it matters
transformers fills the parameter with ones or random numbers and lists it in a long warning. vLLM and SGLang stop, or leave
uninitialized memory in it and report it as loaded. The model still answers.

## How to fix
Rename what lies under another prefix. Else export again: check which name the exporter does not map, the pipeline layout
(stages, offsets), and that all expert-parallel ranks saved. If a layer, a head or a part was removed on purpose, correct the
config.

## When it can be wrong
With `--dry-load transformers` the loader itself answers, and this rule is skipped. Without it, use `--ignore CFG003` where
- the model's own code, under a `model_type` of transformers, omits a parameter, runs a layer several times, or ties what is untied;
- an unknown architecture omits a matrix from some layers at irregular places, and its config does not say so;
- layers of multi-token prediction were dropped on purpose, as in many quantized releases: ordinary decoding needs none;
- a model that only embeds has no head: where its tensors have the names of the model without a head it is a warning, and nothing
  beside files of sentence-transformers.

Not seen are the loss of biases, norms or sinks that several layers of an unknown architecture share, of last layers where the
config gives no number, and of parts that only some releases of a family have.

## Seen in
sgl-project/sglang#16235, NVIDIA/Megatron-LM#1304, NVIDIA/Megatron-LM#1583, huggingface/transformers#24381 (layers);
verl-project/verl#2086, KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716, alibaba/Pai-Megatron-Patch#633,
NVIDIA/Model-Optimizer#1631 (experts); NVIDIA-NeMo/Megatron-Bridge#4657 (router bias); NVIDIA-NeMo/RL#2124,
NVIDIA-NeMo/Megatron-Bridge#2892 (parts of layers); paiml/entrenar#258 (biases); huggingface/transformers#34759,
huggingface/transformers#43159 (embedding); huggingface/transformers#45357, jundot/omlx#1006, modelscope/ms-swift#9172 (towers);
vllm-project/vllm#50355 (a prefix); QwenLM/Qwen3-VL-Embedding#89, NVIDIA/TensorRT-LLM#3324, hiyouga/LlamaFactory#4379 (heads);
vllm-project/vllm#35548 (prediction)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.find_faults import iter_problems


@rule("CFG003", "missing-parameter", severity="error", when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from iter_problems(ckpt, "missing")
