"""Models of different kinds, written as a user would who tunes nothing, ours beside JAX."""

NAMES = (
    "heat2d",  # stencil on a periodic grid
    "wave3d",  # stencil in three dimensions, a medium in each cell
    "nbody",  # all pairs
    "lorenz",  # a small ordinary differential equation
    "cartpole",  # a policy network in a loop
    "springs",  # a mesh of springs: scattered forces
)
"""The modules of the models. Each has a ``MODEL``."""
