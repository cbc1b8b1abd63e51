"""Pictures of weight syncs, for the HTML report: those of a trial, and those of a record."""
