# Megatron on four GPUs, and the server of the rollouts on four others.
CUDA_VISIBLE_DEVICES=4,5,6,7 swift rollout \
    --model org/moe-30b \
    --torch_dtype bfloat16 \
    --vllm_tensor_parallel_size 4 \
    --vllm_max_model_len 16384 \
    --vllm_engine_kwargs '{"max_num_batched_tokens": 8192}' &

CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 \
megatron rlhf \
    --rlhf_type grpo \
    --model org/moe-30b \
    --tensor_model_parallel_size 2 \
    --expert_model_parallel_size 4 \
    --context_parallel_size 2 \
    --moe_permute_fusion true \
    --attention_backend flash \
    --bf16 true \
    --vllm_mode server \
    --vllm_server_host 127.0.0.1 \
    --vllm_server_port 8000 \
    --async_generate true \
    --rollout_importance_sampling_mode sequence_mask \
    --max_completion_length 8192 \
    --temperature 1.0 \
    --no_save_optim
