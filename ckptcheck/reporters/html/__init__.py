"""The report as a page for a browser: one file that asks the network for nothing."""
