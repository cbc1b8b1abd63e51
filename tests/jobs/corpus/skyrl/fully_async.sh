set -x
# Megatron trains a model with experts, and engines on other GPUs sample all the time.
STALENESS=4
ENGINE_KWARGS='{"max_model_len": 10240, "logprobs_mode": "processed_logprobs", "enable_log_requests": false}'

uv run --isolated --extra megatron -m ours.main_fully_async \
  trainer.fully_async.enabled=true \
  trainer.fully_async.max_staleness_steps=$STALENESS \
  trainer.algorithm.policy_loss_type="rollout_is" \
  trainer.policy.model.path="org/experts-30b" \
  trainer.placement.colocate_all=false \
  trainer.strategy=megatron \
  trainer.placement.policy_num_gpus_per_node=8 \
  trainer.policy.megatron_config.tensor_model_parallel_size=2 \
  trainer.policy.megatron_config.context_parallel_size=2 \
  trainer.policy.megatron_config.expert_model_parallel_size=4 \
  trainer.policy.megatron_config.transformer_config_kwargs.moe_permute_fusion=true \
  trainer.max_prompt_length=2048 \
  trainer.our_own_key=1 \
  generator.inference_engine.tensor_parallel_size=4 \
  generator.inference_engine.weight_sync_backend=nccl \
  generator.inference_engine.engine_init_kwargs="$ENGINE_KWARGS" \
  generator.sampling_params.temperature=0.8 \
  generator.sampling_params.max_generate_length=8192 \
  generator.use_cache_salt=true
