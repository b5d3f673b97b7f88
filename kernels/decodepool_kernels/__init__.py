"""The operations of a step, and the programs that carry them out."""
