# The documentation's shortest command: only the configuration says whose it is.
python3 train.py --config configs/base.yaml actor.path=org/other rollout.backend=sglang:d4 \
  gconfig.max_new_tokens=1024
