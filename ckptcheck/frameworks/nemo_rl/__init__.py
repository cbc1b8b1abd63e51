"""What is known of NeMo-RL."""
