pip install trl==1.16.0
VLLM_SERVER_DEV_MODE=1 vllm serve org/model-7b --weight-transfer-config '{"backend":"nccl"}' \
    --logprobs-mode processed_logprobs --no-enable-prefix-caching &
accelerate launch train_async_grpo.py \
    --model_name_or_path org/model-7b \
    --max_staleness 2 \
    --weight_sync_steps 1 \
    --num_generations 8 \
    --temperature 0.9
