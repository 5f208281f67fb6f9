"""Launches without Python: the native launcher, its guards and its argument packing."""
