"""The intermediate representation: data and how to read it. This package imports nothing else of ours."""
