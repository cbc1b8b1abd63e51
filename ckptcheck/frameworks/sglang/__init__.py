"""What is known of SGLang."""
