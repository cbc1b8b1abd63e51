"""A real optimizer step: Megatron's gradient buffers, its reduction over ranks, its Adam."""

from __future__ import annotations

from typing import Any

from .change import DECAY, EPSILON

NO_CLIP = 1e30
"""Megatron tells the norm of the gradient only where it clips."""


class Learning:
    """The optimizer of a rank's part of a model. It lives from the first step on."""

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
            weight_decay=DECAY,
            adam_eps=EPSILON,
            bf16=bf16,
            clip_grad=NO_CLIP,
            use_distributed_optimizer=False,
        )
        self.optimizer = get_megatron_optimizer(config, [self.model])
        model.config.grad_scale_func = self.optimizer.scale_loss

    def begin(self) -> None:
        """Forget the gradients."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def end(self, rate: float) -> float:
        """Apply the gradients; return their norm over all ranks."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        done, norm, _ = self.optimizer.step()
        if not done:
            raise ArithmeticError("the gradient is not finite, so Megatron skipped the step")
        return float(norm)

    def reload(self) -> None:
        """Take over weights that were changed by hand, into the float32 copies that bf16 is trained in."""
        self.optimizer.reload_model_params()
