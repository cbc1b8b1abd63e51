set -x
# A colocated job with FSDP: vLLM sleeps while the trainer works.
MODEL="org/model-1.5b"
GPUS=4
TEMPERATURE=1.0

uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
  data.train_data="['$HOME/data/train.parquet']" \
  trainer.algorithm.advantage_estimator="grpo" \
  trainer.policy.model.path="$MODEL" \
  trainer.placement.colocate_all=true \
  trainer.strategy=fsdp \
  trainer.placement.policy_num_gpus_per_node=$GPUS \
  trainer.train_batch_size=256 \
  trainer.policy_mini_batch_size=64 \
  trainer.max_prompt_length=1024 \
  trainer.algorithm.off_policy_correction.tis_ratio_type=token \
  generator.inference_engine.backend=vllm \
  generator.inference_engine.num_engines=$GPUS \
  generator.inference_engine.tensor_parallel_size=1 \
  generator.inference_engine.engine_init_kwargs.max_model_len=4096 \
  generator.sampling_params.temperature=$TEMPERATURE \
  generator.sampling_params.top_p=1.0 \
  generator.sampling_params.max_generate_length=2048 \
  generator.n_samples_per_prompt=8 \
  "$@"
