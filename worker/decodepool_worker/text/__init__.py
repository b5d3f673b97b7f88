"""Text at the edges of a session: tokens from text and back, stop strings, chat templates. Imports no other room."""
