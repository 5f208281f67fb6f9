"""Implicit differentiation: gradients of what an iteration converges to, without the iteration."""
