"""The `decodepool` command line."""
