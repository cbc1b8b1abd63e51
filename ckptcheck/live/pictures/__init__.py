"""Pictures of what live runs measured, for the HTML report."""
