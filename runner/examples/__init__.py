"""The configs and jobs that come with the package, as examples to list and copy, and as skeletons to begin with."""
