"""Simulations with a published number to meet: ``docs/gallery.md``."""
