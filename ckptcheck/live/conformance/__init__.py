"""The conformance kit: puts faults on a transport, one after the other, and reports the answer to each."""
