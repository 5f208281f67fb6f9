"""What people see of a run: a live view, metrics for Ray's page and Grafana, plots and a report."""
