"""Where arrays lie, and how often they were written."""
