#!/bin/bash
# The script itself holds the configuration; a server of another experiment is started too.
export WANDB_PROJECT=grpo
accelerate launch --num_processes 4 train.py
