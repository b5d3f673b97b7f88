"""`decodepool fetch`: a model from a URL into a file, as the pods of a pool do before they serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from decodepool_sizing.errors import told_url

from decodepool_cli.faults import DONE, bad_input
from decodepool_cli.fetching import Remote, fetch_to
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import progress_bar


def fetch(
    url: Annotated[str, typer.Argument(help="Where the GGUF file is: http or https.", show_default=False)],
    *,
    output: Annotated[Path, typer.Option(help="File to write; what is there already is kept.")],
    sha256: Annotated[str | None, typer.Option(help="Digest the file must have.")] = None,
    make_room: Annotated[
        bool, typer.Option("--make-room", help="Delete other models of the folder where this one does not fit.")
    ] = False,
    bearer_file: Annotated[Path | None, typer.Option(help="File with a token for the URL's own host.")] = None,
) -> int:
    """Fetch a model: resumed where it is cut, checked, and moved into place whole."""
    interrupt_on_terminate()  # in a pod it is process 1, to which the kernel sends no signal that it has no handler for
    if not url.startswith(("http://", "https://")):
        raise bad_input(f"{told_url(url)}: http and https URLs are fetched")
    if sha256 is not None and not (len(sha256) == 64 and set(sha256) <= set("0123456789abcdef")):
        raise bad_input(f"--sha256: {sha256!r} is not 64 digits of 0-9a-f")
    with progress_bar("model") as progress:
        fetch_to(output, Remote(url, sha256, _authorization(bearer_file)), progress, makes_room=make_room)
    return DONE


def _authorization(bearer_file: Path | None) -> dict[str, str]:
    if bearer_file is None:
        return {}
    try:
        token = bearer_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_input(f"--bearer-file: {bearer_file}: {error}") from None
    if not token or not token.isprintable():
        raise bad_input(f"--bearer-file: {bearer_file}: one line with a token is needed")
    return {"Authorization": f"Bearer {token}"}
