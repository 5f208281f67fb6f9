"""Where arrays lie, how often they were written and by whom, and how many bytes a program holds."""
