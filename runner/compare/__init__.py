"""Runs beside each other: the numbers of their trials."""
