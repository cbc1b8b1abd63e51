"""What is known of ms-swift."""
