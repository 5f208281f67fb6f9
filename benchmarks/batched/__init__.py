"""Sweeps of small simulations: batched trials of this package beside JAX's ``vmap``."""
