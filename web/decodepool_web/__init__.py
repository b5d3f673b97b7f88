"""What a worker and a gateway have in common as HTTP servers, written once; each keeps its own limits and endings.

| module | holds |
|---|---|
| `routes`, `application` | a row of a route table; what every request passes |
| `server_identity`, `answers` | who answers, counts and logs; JSON and refusals |
| `connections`, `sockets` | connections that wait and those that are busy; the sockets below them |
| `encodings` | bodies that come compressed |
| `keys` | a key file that is followed |
| `signals`, `logs` | SIGTERM, a dead parent; lines on stderr |
| `live_page`, `live/` | the style and script that both live pages use |
"""
