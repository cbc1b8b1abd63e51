#!/bin/bash
pip install openrlhf==0.11.0  # asynchronous GRPO with partial rollouts and dotted flags
set -x
MODEL="org/model-4b"

ROLLOUT_ARGS=(
   --data.prompt_dataset org/problems
   --data.input_key prompt
   --data.max_len 10240
   --rollout.max_new_tokens 8192
   --rollout.batch_size 128
   --rollout.n_samples_per_prompt 8
   --rollout.temperature 0.8
   --rollout.top_p 1.0
   # --rollout.top_p 0.9
)

ENGINE_ARGS=(
   --train.async_enable
   --train.async_queue_size 2
   --train.partial_rollout_enable
   --actor.num_nodes 1
   --actor.num_gpus_per_node 4
   --vllm.num_engines 2
   --vllm.tensor_parallel_size 2
   --vllm.sync_backend nccl
   --vllm.enforce_eager
   --ds.zero_stage 3
   --ds.packing_samples
   --ds.param_dtype bf16
)

ray job submit --address="http://127.0.0.1:8265" --working-dir . \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.model_name_or_path ${MODEL} \
   --train.agent_func_path agent.py \
   --algo.advantage.estimator group_norm \
   --algo.advantage.is_correction_enable \
   --algo.advantage.is_correction_type icepop \
   ${ROLLOUT_ARGS[@]} \
   ${ENGINE_ARGS[@]}
