"""The syntax tree of a user's function, and what lowering reads outside of it."""
