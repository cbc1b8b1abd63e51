"""One file per framework: where each of its keys goes in the neutral `Job`, and which defaults it has."""
