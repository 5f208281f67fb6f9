"""AMD's GPUs: code objects."""
