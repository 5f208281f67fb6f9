"""Where trials begin, and which go on: from the results of another run, or from those of this one."""
