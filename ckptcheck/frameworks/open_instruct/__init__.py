"""What is known of open-instruct."""
