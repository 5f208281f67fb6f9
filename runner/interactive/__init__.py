"""Sweeps of a class: its config is made of keywords, and a class of a notebook becomes a file that workers can import."""
