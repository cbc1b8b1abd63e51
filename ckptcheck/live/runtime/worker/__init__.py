"""The folder on the PYTHONPATH of a worker process: the only part of ckptcheck that the process can import."""
