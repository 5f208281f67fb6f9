"""Gradient descent within a trial: update rules, the loop, its state as bytes."""
