"""What is written in the language: ``qd.algorithms`` and ``qd.linalg``."""
