#!/bin/bash
pip install trl==1.0.0
CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model org/model-7b --tensor_parallel_size 2 --max_model_len 4096 --enable_prefix_caching true &
CUDA_VISIBLE_DEVICES=2,3 accelerate launch -m trl.scripts.grpo \
    --config configs/grpo.yaml \
    --temperature 0.8 \
    --bf16
