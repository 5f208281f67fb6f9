"""Runs that are killed at random moments, and what they leave: see ``scenario.py``; ``python -m benchmarks.chaos`` plays many of them."""
