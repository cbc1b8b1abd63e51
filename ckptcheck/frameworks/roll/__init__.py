"""What is known of ROLL."""
