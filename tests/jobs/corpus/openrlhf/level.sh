# The correction as of 0.11.2: a level, a mode and a gate.
python3 -m openrlhf.cli.train_ppo_ray \
   --actor.model_name_or_path org/model-1b \
   --reward.remote_url reward.py \
   --actor.num_gpus_per_node 8 \
   --vllm.num_engines 8 \
   --train.colocate_all --vllm.enable_sleep \
   --vllm.enable_prefix_caching \
   --data.max_len 4096 \
   --rollout.n_samples_per_prompt 8 \
   --rollout.temperature 1.0 \
   --algo.advantage.estimator reinforce_baseline \
   --algo.advantage.is_correction_level token \
   --algo.advantage.is_correction_mode clip
