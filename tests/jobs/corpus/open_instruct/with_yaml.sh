# A YAML file before the flags, which replace its values.
python open_instruct/grpo_fast.py configs/math.yaml --response_length 4096 --seed 1
