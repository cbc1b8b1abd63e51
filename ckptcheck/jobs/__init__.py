"""Reads the configuration of an RL job of any supported framework, so that rules can find faults before the job starts."""
