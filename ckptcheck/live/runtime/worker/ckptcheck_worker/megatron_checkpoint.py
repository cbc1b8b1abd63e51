"""Saves a rank's part of a model with Megatron's own saver, as a training script does."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any


def save_checkpoint(model: Any, settings: dict[str, Any], folder: str, iteration: int = 1) -> None:
    """Write a torch_dist checkpoint together with the other ranks; rank 0 writes the tracker file last."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    target = os.path.join(folder, f"iter_{iteration:07d}")
    os.makedirs(target, exist_ok=True)
    dist.barrier()
    groups = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = {
        "args": training_arguments(settings, iteration),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": model.sharded_state_dict(metadata=groups),
    }
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, target, sharded_strategy=strategy)
    dist.barrier()
    if dist.get_rank() == 0:
        with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w", encoding="ascii") as file:
            file.write(str(iteration))


def training_arguments(settings: dict[str, Any], iteration: int) -> Namespace:
    """Return the arguments of Megatron-LM's training script that describe the model."""
    layout = settings["layout"]
    own = {name: value for name, value in settings["config"].items() if name != "layernorm_epsilon"}
    return Namespace(
        **own,
        norm_epsilon=settings["config"]["layernorm_epsilon"],
        group_query_attention=True,
        num_experts=own.get("num_moe_experts"),
        vocab_size=settings["vocabulary"],
        padded_vocab_size=settings["padded_vocabulary"],
        max_position_embeddings=settings["positions"],
        tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"],
        expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=layout["etp"],
        world_size=layout["world"],
        untie_embeddings_and_output_weights=not settings["tied"],
        swiglu=True,
        add_bias_linear=False,
        normalization="RMSNorm",
        rotary_base=settings["rotary_base"],
        position_embedding_type="rope",
        transformer_impl="local",
        bf16=settings["dtype"] == "bfloat16",
        iteration=iteration,
    )
