"""From a call's arguments to the words of a launch."""
