"""From a config to trials: points of the sweep, the job's class, memory plans, and devices."""
