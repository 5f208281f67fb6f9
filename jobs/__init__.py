"""Ready differentiable simulations."""
