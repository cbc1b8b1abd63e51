"""What is known of OpenRLHF."""
