"""Sums over the iterations of a parallel loop on a CPU, in an order that neither threads nor lanes change."""
