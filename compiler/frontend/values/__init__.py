"""The values that the front end computes with, and the operators on them."""
