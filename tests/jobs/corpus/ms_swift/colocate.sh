pip install ms-swift==4.6.0  # GRPO with an adapter and a colocated vLLM
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=4 \
swift rlhf \
    --rlhf_type grpo \
    --model org/model-7b \
    --external_plugins plugins/reward.py \
    --reward_funcs accuracy format \
    --tuner_type lora \
    --use_vllm true \
    --vllm_mode colocate \
    --vllm_tensor_parallel_size 2 \
    --vllm_max_model_len 8192 \
    --vllm_enable_lora true \
    --dataset org/problems \
    --torch_dtype bfloat16 \
    --max_completion_length 4096 \
    --num_generations 8 \
    --temperature 1.0 \
    --top_p 1.0 \
    --rollout_importance_sampling_mode token_truncate \
    --deepspeed zero3 \
    --sleep_level 2 \
    --offload_model true
