"""Launchers: they carry planned runs to processes and bring every one to a state."""
