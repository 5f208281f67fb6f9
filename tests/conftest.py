"""Every pass checks the IR that it produces, in all tests and in the processes that they start (see ``docs/ir.md``)."""

import os

os.environ.setdefault("QDRUN_VERIFY", "1")
