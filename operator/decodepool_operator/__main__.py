"""`python -m decodepool_operator`: run the operator until SIGTERM. Exit 2 for a bad setting, 1 for a failed part."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

from decodepool_operator.api.client import Api
from decodepool_operator.shell.application import Operator
from decodepool_operator.shell.logs import configure_logging
from decodepool_operator.shell.settings import BadSetting, Settings


def main() -> int:
    """Run the operator; return the exit status."""
    try:
        settings = Settings.from_environment(os.environ)
    except BadSetting as fault:
        print(fault, file=sys.stderr)  # noqa: T201 - the one line that a failed start leaves
        return 2
    configure_logging(settings.log_level)
    log = logging.getLogger("decodepool_operator")
    log.info("starting", extra={"fields": {"namespaces": list(settings.namespaces) or "all"}})
    try:
        with suppress(asyncio.CancelledError):  # told to end before anything had begun
            while asyncio.run(_run(settings)):
                log.info("other namespaces can be served than before: beginning anew")
    except Exception as error:
        log.exception("stopped by a fault", extra={"fields": {"fault": str(error)}})
        return 1
    log.info("stopped")
    return 0


async def _run(settings: Settings) -> bool:
    """Run an operator; return whether another one is to follow. It heeds SIGTERM itself once it watches. While it waits
    for its CRD this does, since process 1 of a pod gets no signal that it has no handler for.
    """
    told = asyncio.current_task()
    assert told is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.cancel)
    return await Operator(settings, Api.connect()).run()


if __name__ == "__main__":
    sys.exit(main())
