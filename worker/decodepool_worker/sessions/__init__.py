"""Resident sessions: admission, pages, prefixes, scheduling, and the thread that steps them.

| module | holds |
|---|---|
| `residence` | the pure core: every verb and question, on one thread, without I/O |
| `household`, `registry`, `memory` | who is here; ids; the pages and logits rows they hold |
| `pages`, `prefixes` | the page allocator; which page already holds which prefix |
| `session`, `decodes` | a session and its table of states; one decode and its text |
| `events`, `drawn` | what a stream tells; what it told, kept to be told again |
| `scheduler`, `flight`, `stepper` | which rows go into a step; a session's part of one under way; the step itself |
| `step_thread`, `worker`, `stream` | the thread that owns a residence; its door to asyncio; one stream there |
| `checks`, `errors`, `stats` | what a request must be; why it is refused; counts |
"""
