"""Pictures of a gap between two sides' logprobs, for the HTML report."""
