"""Two checkpoints, tensor by tensor: which belong together, which differ, and why. Bytes are streamed; numpy is enough."""
