"""The tests: their packages mirror ckptcheck's; factories/ builds evidence, doubles/ plays engines and servers."""
