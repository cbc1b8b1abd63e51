"""What is known of slime."""
