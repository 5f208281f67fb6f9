"""A Python function -> IR: an abstract interpreter over its syntax tree that types, inlines, unrolls and splits into tasks."""
