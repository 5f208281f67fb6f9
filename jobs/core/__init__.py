"""The base class of jobs: what they declare, how they run alone, in sessions and in batches, and what comes out."""
