"""What is known of checkpoint-engine."""
