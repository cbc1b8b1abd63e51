"""Checkpoints that Megatron and torch.distributed.checkpoint write, read without either and without torch."""
