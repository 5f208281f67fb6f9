"""The config of a run: YAML with line numbers, values, axes, the validated model, its JSON schema."""
