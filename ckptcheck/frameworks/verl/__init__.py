"""What is known of verl."""
