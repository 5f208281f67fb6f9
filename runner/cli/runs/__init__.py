"""The commands about runs that are there: run again, compare, label, remove, export."""
