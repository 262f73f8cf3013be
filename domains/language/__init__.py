"""Word-level language modelling (WikiText-103)."""
