"""The exact step: rows in, drawn tokens out."""
