"""The pool's one endpoint: places new sessions on workers, finds old ones, and passes their streams through.

| module | holds |
|---|---|
| `command`, `server` | the command line; the life of the process |
| `discovery/` | who the workers are: named at the start, or a Service's EndpointSlices |
| `workers`, `pool`, `placements` | what is known of each, who has most room, who waits for it |
| `polling`, `upstream` | what the gateway asks workers; its connections to them |
| `routes`, `application`, `connections` | the table of endpoints; what every request passes; which client makes room |
| `new_sessions`, `kept_sessions`, `whole_pool` | the three ways that a request can go |
| `bodies`, `headers`, `relay`, `event_blocks` | a request on its way to a worker, an answer on its way back |
| `gateway`, `metrics` | what all of them share |
| `live_api`, `live_pool`, `live/` | the live page |

What it has in common with a worker as an HTTP server is `decodepool_web`.
"""
