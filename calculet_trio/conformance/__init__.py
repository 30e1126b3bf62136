"""Conformance: named cases that show what a package on a runtime can do, and the evidence that they leave."""
