"""Why trainer and engine differ: a ladder of re-scorings, cheapest first, each of which takes one cause away."""
