"""Checks of a job that a submit makes beside its run."""
