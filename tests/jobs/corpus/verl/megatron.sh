set -x
# A model with experts, trained by Megatron; vLLM returns the experts that it chose, and the trainer replays them (R3).
MODEL=Qwen/Qwen3-30B-A3B
PROMPT=2048
RESPONSE=8192

python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_is_threshold=2.0 \
    data.train_files=s3://bucket/train.parquet \
    data.train_batch_size=128 \
    data.max_prompt_length=$PROMPT \
    data.max_response_length=$RESPONSE \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.strategy=megatron \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \
    actor_rollout_ref.actor.megatron.router_replay.mode=R3 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    actor_rollout_ref.rollout.enable_rollout_routing_replay=True \
    actor_rollout_ref.rollout.max_model_len=$((PROMPT + RESPONSE)) \
    trainer.nnodes=4 \
    trainer.n_gpus_per_node=8 \
    trainer.save_freq=20
