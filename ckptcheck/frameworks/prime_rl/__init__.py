"""What is known of prime-rl."""
