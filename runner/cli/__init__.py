"""The commands of ``qdrun``, by what they do; each module loads what it needs when its command runs."""
