#!/bin/bash
# A job of slime: Megatron trains on the GPU of SGLang.
MODEL_ARGS=(
   --num-layers 28
   --hidden-size 1024
   --ffn-hidden-size 3072
   --num-attention-heads 16
   --attention-dropout 0.0
   --hidden-dropout 0.0
)
CKPT_ARGS=(
   --hf-checkpoint Qwen/Qwen3-0.6B
   --ref-load Qwen/Qwen3-0.6B
   --megatron-to-hf-mode bridge
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --global-batch-size 256
   --rollout-max-prompt-len 512
   --rollout-max-response-len 1024
   --rollout-temperature 1.0
)
TRAIN_ARGS=(
   --tensor-model-parallel-size 1
   --attention-backend flash
)
python3 train.py --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 1 \
   "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" --rollout-num-gpus-per-engine 1
