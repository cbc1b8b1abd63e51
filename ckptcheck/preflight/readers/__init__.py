"""One reader per framework: it maps the framework's keys and defaults to the fields of the neutral `Job`."""
