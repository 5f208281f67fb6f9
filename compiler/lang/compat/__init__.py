"""Names of the public package Quadrants: aliases, kinds and refusals."""
