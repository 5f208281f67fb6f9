"""The exact clean-up passes: folding, common subexpressions, dead code, store-to-load forwarding."""
