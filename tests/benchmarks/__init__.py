"""Speed and memory. Nothing here is a test: figures are seconds of a core, or ratios against something measured in the same run."""
