"""What is known of SkyRL."""
