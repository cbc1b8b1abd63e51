"""Pictures of the measurements of live runs, for the HTML report."""
