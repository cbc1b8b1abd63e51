"""What is known of miles, a fork of slime: its jobs are read as slime's, with other defaults."""
