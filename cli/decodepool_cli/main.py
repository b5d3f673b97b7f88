"""The `decodepool` command: a table of commands, each imported when it is called, and the one door for errors."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from decodepool_cli.faults import BAD_INPUT, DONE, FAILED, INTERRUPTED, Fault, one_line, translate

PROGRAM = "decodepool"


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command is, and what it is for. The summary is here so that `--help` imports no command."""

    module: str
    function: str
    summary: str


COMMANDS: dict[str, Command] = {
    "inspect": Command("decodepool_cli.inspect", "inspect", "Show what a model file holds, from its header alone."),
    "plan": Command("decodepool_cli.plan", "plan", "Show how many sessions a device holds, and what limits them."),
    "serve": Command("decodepool_cli.serve", "serve", "Serve one model's sessions over HTTP."),
    "run": Command("decodepool_cli.run", "run", "Serve a DecodePool manifest on this machine's CPU."),
    "generate": Command("decodepool_cli.generate", "generate", "Stream one answer in the terminal."),
    "logits": Command("decodepool_cli.logits", "logits", "Write the raw logits of a text."),
    "fetch": Command("decodepool_cli.fetch", "fetch", "Fetch a model from a URL into a file, whole or not at all."),
    "verify": Command("decodepool_cli.verify", "verify", "Hold this machine and this file to the exactness gates."),
    "bench": Command("decodepool_cli.bench", "bench", "Measure step time, tokens per second and memory."),
}


class LazyGroup(TyperGroup):
    """A group whose commands are imported one at a time, when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the commands that are installed, in the table's order."""
        return [name for name, command in COMMANDS.items() if find_spec(command.module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it; None for a name that is not one."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = COMMANDS[cmd_name]
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        one.command(cmd_name, help=command.summary)(getattr(import_module(command.module), command.function))
        return typer.main.get_command(one)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands' part of the help from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


app = typer.Typer(
    cls=LazyGroup, name=PROGRAM, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only for this option

        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has acted before
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[  # noqa: ARG001 - `main` looks for it, since it must know when parsing fails too
        bool, typer.Option("--debug", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    """Resident LLM decode sessions, exact at every batch width."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(BAD_INPUT)


def main() -> int:
    """Run the command line and return its exit code: errors are one line on stderr, an interrupt is silent."""
    try:
        return _run()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--debug" in sys.argv[1:2]:
            raise
        return _report(error)


def _run() -> int:
    code = typer.main.get_command(app)(prog_name=PROGRAM, standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else DONE


def _report(error: Exception) -> int:
    if isinstance(error, typer.TyperException):
        fault, context = Fault(error.format_message(), error.exit_code), getattr(error, "ctx", None)
        name = context.command_path if context else PROGRAM
    else:
        fault, name = translate(error), PROGRAM
    if str(fault):
        sys.stderr.write(f"{name}: {one_line(str(fault))}\n")
    return fault.exit_code
