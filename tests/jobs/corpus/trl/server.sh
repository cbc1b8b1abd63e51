#!/bin/bash
# vLLM's server on one GPU, the trainer on the others; TRL is pinned as the image has it.
pip install "trl[vllm]==1.16.0" vllm==0.32.0
MODEL=org/model-7b

CUDA_VISIBLE_DEVICES=0 VLLM_SERVER_DEV_MODE=1 vllm serve $MODEL \
    --weight-transfer-config '{"backend": "nccl"}' \
    --logprobs-mode processed_logprobs \
    --max-logprobs -1 \
    --dtype bfloat16 \
    --max-model-len 8192 &

CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch \
    --config_file configs/zero3.yaml \
    --num_processes 3 \
    train_grpo.py \
    --model_name_or_path $MODEL \
    --output_dir out \
    --learning_rate 1e-6 \
    --use_vllm \
    --vllm_mode server \
    --vllm_server_host 127.0.0.1 \
    --num_generations 8 \
    --temperature 0.8 \
    --max_completion_length 4096 \
    --no_shuffle_dataset \
    --gradient_checkpointing
