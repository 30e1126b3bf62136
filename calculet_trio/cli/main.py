"""``calculet-trio``: finds the command, runs it, and turns what went wrong into one line and an exit code.

A command's module is imported only when that command is called, so that ``--help`` is there at once and
``package list`` does not wait for a web framework.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import click

from calculet_trio import __version__
from calculet_trio.cli.exit_codes import ExitCode, exit_code_of
from calculet_trio.errors import CalculetError, OperatorError
from calculet_trio.visible import visible

STDOUT_FD: Final = 1
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""No defect of this program, wherever it meets them."""

LAYOUT: Final = "\n\t"
"""Of our own sentences; everything else that a terminal would obey comes from outside."""


@attrs.frozen
class LazyCommand:
    """A command that has not been imported.

    Args:
        target: ``module:attribute`` of the click command.
        summary: its line in the group's ``--help``.
    """

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        gc.disable()  # what imports make is there to stay; to look for garbage among it takes a tenth of their time
        try:
            command = getattr(importlib.import_module(module), attribute)
        finally:
            gc.freeze()
            gc.enable()
        assert isinstance(command, click.Command), f"{self.target} is not a command"
        return command


COMMANDS: Final[Mapping[str, LazyCommand]] = {
    "serve": LazyCommand("calculet_trio.cli.serve:serve", "Serve a model over HTTP, with an OpenAI-compatible API."),
    "config": LazyCommand(
        "calculet_trio.cli.config:config", "Check and show the configuration, its schema and defaults; make keys."
    ),
    "package": LazyCommand("calculet_trio.cli.package:package", "Get, build, list, show and verify model packages."),
    "models": LazyCommand("calculet_trio.cli.models:models", "List, load, unload and roll back what a daemon serves."),
    "drain": LazyCommand(
        "calculet_trio.cli.operate:drain", "Let a daemon's open replies end, and the daemon with them."
    ),
    "jobs": LazyCommand("calculet_trio.cli.jobs:jobs", "List a daemon's long operations, and cancel one."),
    "reload": LazyCommand("calculet_trio.cli.operate:reload", "Make a daemon read its tenants' keys and limits anew."),
    "trace": LazyCommand("calculet_trio.cli.operate:trace", "Record what a daemon's scheduler hears and decides."),
    "debug-dump": LazyCommand(
        "calculet_trio.cli.operate:debug_dump", "Make a daemon write what a defect's report needs."
    ),
    "device": LazyCommand("calculet_trio.cli.operate:device", "Reset a daemon's device; trust its engines again."),
    "audit": LazyCommand("calculet_trio.cli.audit:audit", "Show and verify the record of what operators did."),
    "binding": LazyCommand("calculet_trio.cli.binding:binding", "Build the native half, which drives a board."),
    "conformance": LazyCommand(
        "calculet_trio.cli.conformance:conformance", "Try what a package on a runtime can do, and keep the evidence."
    ),
    "doctor": LazyCommand("calculet_trio.cli.doctor:doctor", "Examine host, packages, board and service."),
    "simulate": LazyCommand(
        "calculet_trio.cli.simulate:simulate", "Run the daemon in virtual time, on an emulated board that may fail."
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are those of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = COMMANDS.get(cmd_name)
        return known.load() if known else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


@attrs.frozen
class Invocation:
    """What holds for every command: ``verbosity`` counts the ``-v``."""

    verbosity: int = 0


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="calculet-trio")
@click.option("-v", "--verbose", count=True, help="Say more; with an error, show where it came from.")
@click.pass_context
def calculet(ctx: click.Context, verbose: int) -> None:
    """Serve whole-graph precompiled LLMs from an NPU board, or from this machine's CPU.

    \b
    A first try:
      calculet-trio package pull smollm2
      calculet-trio serve
    """
    ctx.obj = Invocation(verbose)


def main() -> None:
    """The console script: run `sys.argv` and leave with the exit code.

    With `ExitCode.RESTART` and `ExitCode.NOT_QUIET` a thread may be inside the device's library for ever: no
    finalizer, and no destructor of that library, may wait for it.
    """
    code = run(sys.argv[1:])
    if code in (ExitCode.RESTART, ExitCode.NOT_QUIET):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: without the program's name.

    Returns:
        The exit code, see `calculet_trio.cli.exit_codes`.
    """
    # click's own `main` would turn a reader that left into exit code 1, which means a verdict here.
    try:
        with calculet.make_context("calculet-trio", list(arguments)) as context:
            outcome: Any = calculet.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.Abort, KeyboardInterrupt, EOFError):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as help_page:
        click.echo(help_page.format_message(), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        _say(error.format_message(), f"{error.ctx.command_path} --help" if error.ctx else None)
        return ExitCode.USAGE
    except click.ClickException as error:
        _say(error.format_message(), None)
        return ExitCode.USAGE
    except BrokenPipeError:  # … | head: the reader has what it wanted
        _leave_unsaid()
        return ExitCode.DONE
    except Exception as error:  # noqa: BLE001 — the last place where an error can become a sentence
        return _explain(error, verbose=_is_verbose(arguments))
    return int(outcome or ExitCode.DONE)


def _is_verbose(arguments: Sequence[str]) -> bool:
    """Whether ``-v`` was among the options before the command; asked when click has no context any more."""
    for argument in arguments:
        if not argument.startswith("-"):
            return False
        if argument == "--verbose" or (not argument.startswith("--") and "v" in argument):
            return True
    return False


def _explain(error: Exception, *, verbose: bool) -> ExitCode:
    known = _first_known(error)
    if verbose:
        traceback.print_exception(error)
    if known is None and isinstance(error, OSError) and error.errno in DISK_FULL:
        _say(f"nothing more can be written{f' to {error.filename}' if error.filename else ''}: {error.strerror}", None)
        _leave_unsaid()
        return ExitCode.UNAVAILABLE
    if known is None:
        _say(
            f"unexpected {type(error).__name__}: {error}",
            "this is a defect; -v before the command shows where it happened",
        )
        return ExitCode.DEFECT
    _say(str(known), known.hint if isinstance(known, OperatorError) else None)
    return exit_code_of(known)


def _leave_unsaid() -> None:
    """Let go of what standard output does not take, so that the flush at exit does not fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT_FD)


def _first_known(error: BaseException) -> CalculetError | None:
    """Our own error, alone or in the groups that nurseries make; None if something else is among them."""
    if isinstance(error, BaseExceptionGroup):
        inner = [_first_known(each) for each in error.exceptions]
        return inner[0] if None not in inner else None
    return error if isinstance(error, CalculetError) else None


def _say(message: str, hint: str | None) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {visible(message, apart_from=LAYOUT)}", err=True)
    if hint:
        click.echo(f"{click.style('hint:', bold=True)} {visible(hint, apart_from=LAYOUT)}", err=True)


if __name__ == "__main__":
    main()
