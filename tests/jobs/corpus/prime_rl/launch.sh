export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
uv run rl @ configs/rl.toml --orchestrator.train.sampling.temperature 1.0
