"""Names of the public peer package: aliases, kinds and refusals."""
