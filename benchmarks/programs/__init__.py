"""Public programs of Taichi, DiffTaichi and Quadrants, run unchanged through ``qdrun.compat``, beside Taichi itself."""
