"""Reverse mode: from a simplified kernel to the kernel that computes its adjoints."""
