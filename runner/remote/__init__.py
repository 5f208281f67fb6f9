"""Runs in a process of their own or on a cluster: detached, shipped and followed."""
