# Without vLLM: the trained model generates by itself.
trl rloo \
    --model_name_or_path org/model-0.5b \
    --dataset_name org/problems \
    --reward_model_name_or_path org/reward \
    --output_dir out \
    --num_generations 4 \
    --accelerate_config zero2 \
    --temperature 0.7 \
    --top_p 1.0 \
    --max_completion_length 512
