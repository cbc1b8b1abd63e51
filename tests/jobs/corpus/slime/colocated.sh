#!/bin/bash
# A model with experts, trained by Megatron on the GPUs of SGLang; MTP layers are trained and draft for the rollouts.
MODEL_ARGS=(
   --num-layers 48
   --num-experts 128
   --moe-permute-fusion
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --mtp-num-layers 1
)
CKPT_ARGS=(
   --hf-checkpoint Qwen/Qwen3-30B-A3B
   --ref-load org/qwen3-torch-dist
   --save org/checkpoints
   --save-interval 20
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --global-batch-size 256
   --rollout-max-prompt-len 1024
   --rollout-max-response-len 8192
   --rollout-temperature 1.0
   --use-rollout-routing-replay
)
TRAIN_ARGS=(
   --tensor-model-parallel-size 4
   --expert-model-parallel-size 8
   --context-parallel-size 1
   --attention-backend flash
   --enable-mtp-training
   --use-tis
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 8
   --sglang-ep-size 8
   --sglang-speculative-algorithm EAGLE
)
python3 train.py --colocate --actor-num-nodes 2 --actor-num-gpus-per-node 8 \
   "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${SGLANG_ARGS[@]}"
