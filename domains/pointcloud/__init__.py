"""Semantic segmentation of LiDAR point clouds with Point Transformer V3."""
