"""Takes a real optimizer step: Megatron's gradient buffers, its reduction over ranks, its Adam."""

from __future__ import annotations

from typing import Any

from .perturb import ADAM_EPSILON, WEIGHT_DECAY

NO_CLIP = 1e30
"""A bound that clips nothing: Megatron reports the norm of the gradient only if it clips."""


class MegatronOptimizer:
    """The optimizer of a rank's part of a model, built at the first step."""

    def __init__(self, model: Any, bf16: bool) -> None:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        model.config.finalize_model_grads_func = finalize_model_grads
        self.model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False),
            model,
        )
        config = OptimizerConfig(
            optimizer="adam",
            lr=1.0,
            weight_decay=WEIGHT_DECAY,
            adam_eps=ADAM_EPSILON,
            bf16=bf16,
            clip_grad=NO_CLIP,
            use_distributed_optimizer=False,
        )
        self.optimizer = get_megatron_optimizer(config, [self.model])
        model.config.grad_scale_func = self.optimizer.scale_loss

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def apply_gradients(self, rate: float) -> float:
        """Apply the gradients; return their norm over all ranks."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        updated, norm, _ = self.optimizer.step()
        if not updated:
            raise ArithmeticError("the gradient is not finite, so Megatron skipped the step")
        return float(norm)

    def reload_weights(self) -> None:
        """Copy weights that were changed outside the optimizer into the float32 copies that it updates for bf16."""
        self.optimizer.reload_model_params()
