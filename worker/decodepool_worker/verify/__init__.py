"""The exactness law as a program: gates that hold any `Engine` to it, on raw bytes.

The law: `logits(tokens[0..n])` is what a lone session computes, one token at a time; every row of every step gives
those bits. So one thing is checked everywhere. `Witness` stands before the engine, knows which tokens each page holds,
and compares every row of logits with the one first seen for the same tokens. The gates only bring about situations:
company, chunks, forks, failures.

| module | holds |
|---|---|
| `witness` | the engine that watches another, and the words for a difference |
| `lab` | the token streams, their lone reference, and the hands that run spans and sessions |
| `row_gates`, `session_gates`, `long_gate` | the situations |
| `gates` | the table of gates, and how one is run |
"""
