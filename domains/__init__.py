"""The tasks of the suite, one folder each; none imports another."""
