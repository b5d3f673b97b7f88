"""A TCP relay, which may listen in one network and connect in another, and can go silent without closing anything.

    python -m decodepool_cluster.relay PORT HOST:PORT [NAMESPACE]

listens on this machine's localhost and connects from inside a network namespace. As an object it stands between a
client and a server in tests: `silence` is what a broken network looks like, where no connection ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from decodepool_cluster.linux import move_into

CHUNK_BYTES = 1 << 16


class Relay:
    """Passes bytes between whoever connects to `port` on localhost and one server, until it is told to be silent."""

    def __init__(self, host: str, port: int, listen_port: int = 0) -> None:
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", listen_port))
        self.port: int = self.listener.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> Relay:
        """Serve in a thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self.loop.call_soon_threadsafe(self._end)
        self._thread.join()

    def silence(self) -> None:
        """Pass nothing more either way, and keep every connection open."""
        self.loop.call_soon_threadsafe(self._passing.clear)

    def resume(self) -> None:
        """Pass again, what was held back first."""
        self.loop.call_soon_threadsafe(self._passing.set)

    def serve(self) -> None:
        """Relay until `__exit__`, or for good."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._serve())

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._accept, sock=self.listener) as server:
            await server.serve_forever()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep hold of the connection: asyncio has none of one whose client has said all and waits for an answer."""
        connection = self.loop.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
            await self._passing.wait()
            writer.write_eof()  # whoever has said all may still be answered
        except OSError:
            writer.close()


def main() -> None:
    """Relay from this machine's localhost into a network namespace, for good."""
    port, target, *namespace = sys.argv[1:]
    host, _, target_port = target.rpartition(":")
    relay = Relay(host, int(target_port), int(port))
    if namespace:
        move_into(Path(namespace[0]))
    relay.serve()


if __name__ == "__main__":
    main()
