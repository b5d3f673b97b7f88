"""Text at the edges of a session: vocabularies, tokens to text and back, stop strings, chat templates. A leaf: imports no other room."""
