"""YAML configurations a user can run as they are."""
