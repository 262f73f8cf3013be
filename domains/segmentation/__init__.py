"""Semantic segmentation (ADE20K, Segmenter)."""
