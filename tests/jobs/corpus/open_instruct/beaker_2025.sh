# A job of the winter of 2025, behind the launcher of its cluster.
MODEL=org/model-7b
python mason.py \
    --cluster ours/cluster \
    --image ours/image \
    --num_nodes 2 \
    --gpus 8 \
    --env RAY_CGRAPH_get_timeout=300 \
    -- source configs/ray_node_setup.sh \&\& python open_instruct/grpo_fast.py \
        --model_name_or_path $MODEL \
        --num_samples_per_prompt_rollout 8 \
        --num_unique_prompts_rollout 64 \
        --max_prompt_token_length 2048 \
        --response_length 4096 \
        --pack_length 6144 \
        --temperature 1.0 \
        --truncated_importance_sampling_ratio_cap 2.0 \
        --async_steps 4 \
        --num_learners_per_node 8 4 \
        --vllm_num_engines 4
