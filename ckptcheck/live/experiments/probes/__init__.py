"""Experiments on a real engine, alone or beside a trainer, that separate the possible causes of a gap."""
