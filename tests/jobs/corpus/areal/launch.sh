# Overrides after the configuration, as the documentation starts a job.
python3 train.py --config configs/base.yaml \
  scheduler.type=local \
  rollout.backend=sglang:d4 \
  actor.backend=fsdp:d4 \
  gconfig.max_new_tokens=4096 \
  actor.mb_spec.max_tokens_per_mb=8192
