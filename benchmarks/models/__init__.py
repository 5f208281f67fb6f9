"""Twelve models of different kinds, written as a user would who tunes nothing, ours beside JAX."""

NAMES = (
    "heat2d",  # stencil on a periodic grid
    "wave3d",  # stencil in three dimensions, a medium in each cell
    "particles",  # neighbour lists, rebuilt while it runs
    "nbody",  # all pairs
    "lorenz",  # a small ordinary differential equation
    "robertson",  # a stiff one: implicit steps with Newton's method
    "cartpole",  # a policy network in a loop
    "springs",  # a mesh of springs: scattered forces
    "lattice",  # lattice Boltzmann
    "mpm",  # material points: particles to a grid and back
    "fem",  # finite elements, solved by conjugate gradients
    "raymarch",  # pixels that march through a distance function
)
"""The modules of the models. Each has a ``MODEL``."""
