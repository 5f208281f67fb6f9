"""Views of a run: a live view, metrics for Ray's dashboard and Grafana, plots and a report."""
