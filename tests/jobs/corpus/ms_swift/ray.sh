megatron rlhf --use_ray true --config configs/ray.yaml
