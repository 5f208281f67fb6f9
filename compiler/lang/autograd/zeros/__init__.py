"""Gradients that are zero whatever the values, and what a tape says about them."""
