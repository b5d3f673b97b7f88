"""The `decodepool` command line: `main` is the door, and each command is the file of its name.

A command's own file has its options and its output, and refuses what it can without the engine, whose import takes a
second. What needs the engine is a file beside it, imported late.

| modules | for |
|---|---|
| `answering`, `verification` | what `generate` and `verify` do with an engine |
| `subjects`, `cases`, `measurement`, `measuring` | what `bench` measures, when, and with which clock |
| `engines` | from a file to an engine or a tokenizer, for these and `logits` |
| `supervisor`, `listeners`, `last_words`, `pool_memory`, `host_paths` | what `run` needs |
| `fetching`, `download`, `room` | models behind URLs |
| `model`, `loading`, `amounts` | the header that a command was given; the options that commands share |
| `output`, `files`, `provenance` | tables and JSON; files whole or not at all; where a measurement comes from |
| `faults`, `interrupts` | how commands fail, and how they end when asked to |
"""
