"""Scatter to gather: loops over the elements that a parallel loop adds to."""
