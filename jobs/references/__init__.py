"""The numbers that the gallery has to meet, a JSON file for each job: quantity, value, tolerance, source, size."""
