"""Finds faults in the values of a checkpoint: from the statistics of the value pass, and from a few bytes read again."""
