"""Experiments that tell one cause of a gap from another, each on a real engine, alone or beside a trainer."""
