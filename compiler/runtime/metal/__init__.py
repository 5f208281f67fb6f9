"""Apple's GPUs through Metal, whose Objective-C objects are driven by ctypes."""
