"""The step on a CPU: one compiled program that a team of threads runs without the GIL."""
