"""How much a reverse kernel must remember, known before it runs. Knows no device: plans from IR and arguments."""
