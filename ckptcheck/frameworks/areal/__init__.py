"""What is known of AReaL."""
