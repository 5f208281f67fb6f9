"""qdrun: differentiable simulations in bulk. ``import qdrun as qd`` gives the kernel language."""
