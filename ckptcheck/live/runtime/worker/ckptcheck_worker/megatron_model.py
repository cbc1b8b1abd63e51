"""Builds a rank's part of a GPT model with the real megatron-core, and describes its parameters."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch

from .sampling import upcast_parallel_head

LAYER = re.compile(r"(?<=^decoder\.layers\.)\d+")
EXPERT = re.compile(r"(?<=\.local_experts\.)\d+")
DENSE_CONFIG = {
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
MOE_CONFIG = {
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": False,  # needs CUDA; sequential experts compute the same
    "moe_permute_fusion": False,
}


@dataclass(frozen=True)
class RankParameter:
    """A parameter of this rank."""

    name: str
    """Megatron's name, numbered over the whole model."""
    weight: Any
    axis: int | None
    """The axis along which tensor-parallel ranks shard it, None if they do not."""
    part: int
    """Which of the tensor-parallel shards this rank holds."""
    parts: int
    """The number of tensor-parallel shards."""
    is_tied_copy: bool
    """Whether it repeats a parameter of another stage, as a tied head does."""

    def describe(self) -> dict[str, Any]:
        """Return the description that the other ranks need."""
        return {
            "name": self.name,
            "shape": list(self.weight.shape),
            "axis": self.axis,
            "part": self.part,
            "parts": self.parts,
            "is_tied_copy": self.is_tied_copy,
        }


def build(settings: dict[str, Any], chunk: int | None = None) -> Any:
    """Build this rank's part of the model.

    Args:
        settings: see ckptcheck/live/runtime/trainers/megatron_settings.py.
        chunk: which of this rank's virtual pipeline stages; None without virtual pipeline parallelism.

    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    allow_sequence_parallel_norms()
    dtype = getattr(torch, settings["dtype"])
    layout = settings["layout"]
    sparse = "num_moe_experts" in settings["config"]
    config = TransformerConfig(
        **DENSE_CONFIG,
        **settings["config"],
        **(MOE_CONFIG if sparse else {}),
        activation_func=torch.nn.functional.silu,
        tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=None if chunk is None else layout["vpp"],
        expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=layout["etp"],
        # with tensor parallelism Megatron trains experts only under sequence parallelism
        sequence_parallel=layout["tp"] > 1 and (sparse or layout.get("sp", False)),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
    )
    virtual: dict[str, Any] = {} if chunk is None else {"vp_stage": chunk}
    stage: dict[str, Any] = {} if chunk is None else {"ignore_virtual": False, "vp_stage": chunk}
    if sparse:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", **virtual)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=settings["config"]["qk_layernorm"], normalization="RMSNorm")
    model_class = make_value_model_class() if "value_head" in settings else GPTModel
    model = model_class(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=settings["padded_vocabulary"],
        max_sequence_length=settings["positions"],
        pre_process=parallel_state.is_pipeline_first_stage(**stage),
        post_process=parallel_state.is_pipeline_last_stage(**stage),
        parallel_output=True,
        share_embeddings_and_output_weights=settings["tied"],
        position_embedding_type="rope",
        rotary_base=settings["rotary_base"],
        rope_scaling=settings["rope_scaling"] is not None,
        rope_scaling_factor=settings["rope_scaling"] or 1.0,
        **virtual,
        **({"value_bias": settings["value_head"]["bias"]} if "value_head" in settings else {}),
    )
    model = model.to(dtype).eval()
    if settings["head_fp32"] and parallel_state.is_pipeline_last_stage():
        upcast_parallel_head(model.output_layer)
    return model


def make_value_model_class() -> type:
    """Return a critic, as ROLL's McaValueModel: its last stage computes values [batch, length, 1] by a Linear that no rank shards.

    Its constructor takes one more argument, value_bias: whether the head has a bias, as transformers' and TRL's have.
    """
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    class ValueModel(GPTModel):  # type: ignore[misc]
        post_process: bool

        def __init__(self, *arguments: Any, value_bias: bool, **named: Any) -> None:
            super().__init__(*arguments, **named)
            if self.post_process:
                self.output_layer = None
                self.value_head = torch.nn.Linear(
                    self.config.hidden_size, 1, bias=value_bias, dtype=self.config.params_dtype
                )

        def forward(self, *arguments: Any, **named: Any) -> Any:
            last = self.post_process
            # then GPTModel returns the hidden states [length, batch, hidden]
            self.post_process = False
            try:
                hidden = super().forward(*arguments, **named)
            finally:
                self.post_process = last
            if not last:
                return hidden
            if self.config.sequence_parallel:
                # every rank computes the same loss of the whole sequence, so none has a part of the gradient to add
                hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
            return self.value_head(hidden).transpose(0, 1).contiguous()

    return ValueModel


def allow_sequence_parallel_norms() -> None:
    """Let torch's own norms run under sequence parallelism, where each rank normalizes only its share of the tokens.

    megatron-core refuses them there, because it would not sum their gradients over ranks; it does sum the gradients of weights
    that are marked (`finalize_model_grads`). Experts under tensor parallelism cannot be trained in any other way.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    original = WrappedTorchNorm.__new__

    def new_norm(cls: type, config: Any, *arguments: Any, **named: Any) -> Any:
        norm_config = copy.copy(config)
        norm_config.sequence_parallel = False
        norm = original(cls, norm_config, *arguments, **named)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel
        return norm

    WrappedTorchNorm.__new__ = new_norm


def rank_parameters(model: Any, settings: dict[str, Any]) -> list[RankParameter]:
    """Return the parameters of this rank."""
    from megatron.core import parallel_state

    layers = [layer.layer_number - 1 for layer in model.decoder.layers]
    experts_per_rank = settings["config"].get("num_moe_experts", 0) // settings["layout"]["ep"]
    first = parallel_state.get_expert_model_parallel_rank() * experts_per_rank
    parameters = []
    for local, weight in model.named_parameters():
        name = LAYER.sub(lambda match: str(layers[int(match[0])]), local)
        name = EXPERT.sub(lambda match: str(int(match[0]) + first), name)
        is_tied_copy = settings["tied"] and name == "output_layer.weight"
        axis = weight.partition_dim if getattr(weight, "tensor_model_parallel", False) else None
        if ".local_experts." in name:
            part = parallel_state.get_expert_tensor_parallel_rank()
            parts = parallel_state.get_expert_tensor_parallel_world_size()
        else:
            part = parallel_state.get_tensor_model_parallel_rank()
            parts = parallel_state.get_tensor_model_parallel_world_size()
        if axis is None or parts == 1:
            axis, part, parts = None, 0, 1
        parameters.append(RankParameter(name, weight, axis, part, parts, is_tied_copy))
    return parameters
