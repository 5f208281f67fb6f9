"""The state of a lowering: the builder, the open functions, names and what they are bound to."""
