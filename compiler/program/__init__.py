"""The program: memory, compiled kernels, plans and launches on one device."""
