#!/bin/bash
# A dense model; deltas of its weights go to engines elsewhere over a shared folder.
ARGS=(
   --hf-checkpoint Qwen/Qwen3-8B
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --rollout-temperature 1.0
   --rollout-num-gpus 8
   --rollout-num-gpus-per-engine 2
   --tensor-model-parallel-size 2
   --deterministic-mode
   --sglang-enable-deterministic-inference
   --update-weight-mode delta
   --update-weight-transport disk
   --update-weight-disk-dir /shared/updates
   --update-weight-local-checkpoint-dir /nvme/base
   --save-interval 50 --save /shared/saves
)
python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 "${ARGS[@]}"
