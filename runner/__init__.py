"""Submit, schedule, run, collect."""
