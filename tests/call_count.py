"""Work in calls of functions, which depend on nothing but the input: a clock also measures the other processes of the machine."""

import sys


def calls(f, *args):
    """The result of ``f``, and how many functions it called, those of C included."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = f(*args)
    finally:
        sys.setprofile(before)
    return result, count
