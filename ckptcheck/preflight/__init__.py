"""Reads the configuration of an RL job, of any framework, and says before the job starts what will go wrong."""
