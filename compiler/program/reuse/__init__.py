"""A program that runs one simulation after another."""
