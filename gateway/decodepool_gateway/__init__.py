"""The pool's one endpoint: places new sessions on workers, finds old ones, and passes their streams through."""
