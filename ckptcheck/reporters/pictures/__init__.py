"""Pictures of evidence, for the HTML report."""
