"""Finds out why trainer and engine differ. Each experiment removes one possible cause; the cheapest come first."""
