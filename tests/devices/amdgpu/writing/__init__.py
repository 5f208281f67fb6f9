"""Turns instructions into lines of Python."""
