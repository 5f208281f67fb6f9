"""The functions that kernels can call: mathematics, linear algebra, decompositions."""
