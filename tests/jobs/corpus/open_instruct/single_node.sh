#!/bin/bash
# Asynchronous GRPO on one node: DeepSpeed trains, vLLM samples.
export VLLM_ALLOW_INSECURE_SERIALIZATION=1
uv run open_instruct/grpo_fast.py \
    --dataset_mixer_list org/math 1.0 \
    --dataset_mixer_list_splits train \
    --max_prompt_token_length 2048 \
    --response_length 8192 \
    --pack_length 10240 \
    --num_unique_prompts_rollout 32 \
    --num_samples_per_prompt_rollout 8 \
    --model_name_or_path org/model-4b \
    --temperature 1.0 \
    --vllm_top_p 1.0 \
    --async_steps 4 \
    --inflight_updates \
    --use_rho_correction true \
    --model_dtype bfloat16 \
    --deepspeed_stage 3 \
    --num_learners_per_node 4 \
    --vllm_num_engines 4 \
    --vllm_tensor_parallel_size 1 \
    --vllm_enable_prefix_caching \
    --chat_template olmo \
    --no_push_to_hub \
    --seed 1
