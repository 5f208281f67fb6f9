"""Gradients over several launches: the tape, its checks, time steps, forward mode."""
