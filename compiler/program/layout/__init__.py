"""The layout tree of fields, and where it places them."""
