"""Evaluation and rendering of finished runs, from the store alone."""
