"""Spurious attention: a made-up task with a misleading feature (QUEST paper, section 2.2)."""
