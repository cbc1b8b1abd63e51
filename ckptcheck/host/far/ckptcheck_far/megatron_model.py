"""Builds a rank's part of a GPT model by the real megatron-core, and says what each of its parameters is."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch

from .drawing import widen_parallel

LAYER = re.compile(r"(?<=^decoder\.layers\.)\d+")
EXPERT = re.compile(r"(?<=\.local_experts\.)\d+")
PLAIN = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "attention_softmax_in_fp32": True,
    "calculate_per_token_loss": True,  # then gradients are means over tokens, however these lie on data-parallel ranks
    "use_cpu_initialization": True,
    "perform_initialization": True,  # else, on the CPU, no weight is marked as cut
    # every fusion is a kernel of CUDA, Apex or Transformer Engine
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
}
SPARSE = {
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": False,  # needs CUDA; sequential experts compute the same
    "moe_permute_fusion": False,
}


@dataclass(frozen=True)
class Piece:
    """A parameter of this rank. name: Megatron's, numbered over the whole model. axis: along which it is cut, None if not.

    part of parts: which of the tensor-parallel pieces. copy: it repeats another stage's, as a tied head does.
    """

    name: str
    weight: Any
    axis: int | None
    part: int
    parts: int
    copy: bool

    def told(self) -> dict[str, Any]:
        """Say it to the other ranks."""
        return {
            "name": self.name,
            "shape": list(self.weight.shape),
            "axis": self.axis,
            "part": self.part,
            "parts": self.parts,
            "copy": self.copy,
        }


def build(settings: dict[str, Any]) -> Any:
    """Build this rank's part of the model. settings: see ckptcheck/trainers/megatron_settings.py."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    mark_norms()
    dtype = getattr(torch, settings["dtype"])
    layout = settings["layout"]
    sparse = "num_moe_experts" in settings["config"]
    config = TransformerConfig(
        **PLAIN,
        **settings["config"],
        **(SPARSE if sparse else {}),
        activation_func=torch.nn.functional.silu,
        tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"],
        expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=layout["etp"],
        sequence_parallel=sparse and layout["tp"] > 1,  # Megatron trains experts under TP in no other way
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
    )
    if sparse:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=settings["config"]["qk_layernorm"], normalization="RMSNorm")
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=settings["padded_vocabulary"],
        max_sequence_length=settings["positions"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=settings["tied"],
        position_embedding_type="rope",
        rotary_base=settings["rotary_base"],
        rope_scaling=settings["rope_scaling"] is not None,
        rope_scaling_factor=settings["rope_scaling"] or 1.0,
    )
    model = model.to(dtype).eval()
    if settings["head_fp32"] and parallel_state.is_pipeline_last_stage():
        widen_parallel(model.output_layer)
    return model


def mark_norms() -> None:
    """Let norms of plain torch see only a rank's share of the tokens, as sequence parallelism has it.

    megatron-core refuses them there, for it would not know to sum their gradients over ranks; it does for weights that
    are marked (`finalize_model_grads`). Experts under tensor parallelism can be trained in no other way.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    plain = WrappedTorchNorm.__new__

    def marked(cls: type, config: Any, *arguments: Any, **named: Any) -> Any:
        asked = copy.copy(config)
        asked.sequence_parallel = False
        norm = plain(cls, asked, *arguments, **named)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel
        return norm

    WrappedTorchNorm.__new__ = marked


def pieces(model: Any, settings: dict[str, Any]) -> list[Piece]:
    """Return this rank's parameters."""
    from megatron.core import parallel_state

    layers = [layer.layer_number - 1 for layer in model.decoder.layers]
    each = settings["config"].get("num_moe_experts", 0) // settings["layout"]["ep"]
    first = parallel_state.get_expert_model_parallel_rank() * each
    found = []
    for local, weight in model.named_parameters():
        name = LAYER.sub(lambda match: str(layers[int(match[0])]), local)
        name = EXPERT.sub(lambda match: str(int(match[0]) + first), name)
        copy = settings["tied"] and name == "output_layer.weight"
        axis = weight.partition_dim if getattr(weight, "tensor_model_parallel", False) else None
        if ".local_experts." in name:
            part = parallel_state.get_expert_tensor_parallel_rank()
            parts = parallel_state.get_expert_tensor_parallel_world_size()
        else:
            part = parallel_state.get_tensor_model_parallel_rank()
            parts = parallel_state.get_tensor_model_parallel_world_size()
        if axis is None or parts == 1:
            axis, part, parts = None, 0, 1
        found.append(Piece(name, weight, axis, part, parts, copy))
    return found
