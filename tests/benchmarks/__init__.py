"""Speed and memory. Nothing here is a test: figures are ratios against something else measured in the same run."""
