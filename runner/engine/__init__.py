"""Running a sweep: what happens next as a pure state machine, and the adapters that let it happen on a ledger, workers and a store."""
