#!/bin/bash
pip install trl==1.0.0
trl vllm-serve --model org/model-7b --tensor_parallel_size 2 --max_model_len 4096 --enable_prefix_caching true &
accelerate launch -m trl.scripts.grpo \
    --config configs/grpo.yaml \
    --temperature 0.8 \
    --bf16
