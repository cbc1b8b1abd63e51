# The layout before March 2026: the engine's settings stand in generator itself, and Hydra reads ppo_base_config.yaml.
uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base \
  trainer.policy.model.path="org/model" \
  trainer.strategy=fsdp2 \
  trainer.algorithm.use_tis=true \
  trainer.algorithm.tis_imp_ratio_cap=2.0 \
  generator.backend=vllm \
  generator.num_inference_engines=4 \
  generator.inference_engine_tensor_parallel_size=2 \
  generator.model_dtype=bfloat16 \
  generator.async_engine=true \
  generator.sampling_params.temperature=1.0 \
  generator.sampling_params.logprobs=0 \
  +generator.engine_init_kwargs.max_model_len=3000
