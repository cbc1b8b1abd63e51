"""What is known of TRL."""
