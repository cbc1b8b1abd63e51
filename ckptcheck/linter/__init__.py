"""Loads the rules, chooses which to run, runs them over evidence, and reports what they found."""
