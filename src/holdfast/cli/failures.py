"""What a command ends with when it can't do its work: one sentence, and an exit code that scripts can rely on."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from click.core import ParameterSource

from holdfast.printing import without_password

OK = 0
RUN_FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNREACHABLE = 5
DECLINED = 6
BUG = 70
UNWRITTEN = 74
INTERRUPTED = 130
UNREAD = 141  # as the shell says of a program that SIGPIPE has ended

GLOBAL_OPTIONS = ("-A", "--app", "--store", "--app-name", "--debug")


class Failure(click.ClickException):
    """One sentence for stderr, and an exit code."""


class RunFailed(Failure):
    exit_code = RUN_FAILED


class Misuse(Failure):
    """A usage error that is no question of syntax, so that the usage line would only be in the way."""

    exit_code = USAGE


class NotFound(Failure):
    exit_code = NOT_FOUND


class Conflict(Failure):
    exit_code = CONFLICT


class Unreachable(Failure):
    exit_code = UNREACHABLE


class Bug(Failure):
    exit_code = BUG


class Unwritten(Failure):
    exit_code = UNWRITTEN


def command(*words: str) -> str:
    """A `holdfast` command as one could paste it, with the options that lead to the same target. A password is left to
    whoever pastes it: what a command prints is kept in logs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return shlex.join(["holdfast", *words])
    root = context.find_root()
    options: list[str] = []
    for option, name in (("-A", "target"), ("--store", "store"), ("--app-name", "app_name")):
        if root.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            options += [option, without_password(str(root.params[name]))]
    return f"{root.info_name} {shlex.join([*options, *words])}"


@contextmanager
def told_in_a_sentence(context: click.Context | None = None) -> Iterator[None]:
    """Turn whatever is raised into a Failure; `--debug` shows the traceback too."""
    try:
        yield
    except click.NoSuchOption as error:
        if error.option_name in GLOBAL_OPTIONS:
            said = f"{error.option_name} comes before the command: holdfast {error.option_name} ... COMMAND"
            raise click.UsageError(said, error.ctx) from None
        raise
    except (click.ClickException, click.exceptions.Exit):
        raise
    except (KeyboardInterrupt, click.Abort):  # click says Abort for an interrupt while it asks
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            drop_what_is_unwritten()
            raise click.exceptions.Exit(UNREAD) from None
        if isinstance(error, OSError) and _is_of_printing(error):
            drop_what_is_unwritten()
            raise Unwritten(f"the output can't be written: {error.strerror}") from None
        if context is not None and context.params.get("debug"):
            traceback.print_exc(file=sys.stderr)
        raise _failure(error) from None


def _is_of_printing(error: OSError) -> bool:
    """Whether it was raised where something is printed, which is always by click or rich."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).partition(".")[0] in ("click", "rich")


def drop_what_is_unwritten() -> None:
    """Nobody reads it any more, or a disk is full. Python would write what is left at its end, and complain."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a stream that was closed before we began is None
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failure(error: Exception) -> Failure:
    from holdfast import errors as e

    text = str(error).rstrip(".")
    if isinstance(error, e.RunNotFoundError):
        return NotFound(f"{text}; `{command('runs', 'list')}` shows what there is")
    if isinstance(error, e.ScheduleNotFoundError):
        return NotFound(f"{text}; `{command('schedules', 'list')}` says more")
    if isinstance(error, e.ScheduleError):
        return Conflict(f"{text}; `{command('schedules', 'show', error.name)}` says more")
    if isinstance(error, e.HookNotFoundError | e.UnknownNameError):
        return NotFound(text)
    if isinstance(error, e.RequestRefusedError):
        return Conflict(text)
    if isinstance(error, e.RunStuckError):
        return RunFailed(f"{text}; `{command('runs', 'resume', error.run_id)}` once that is corrected")
    if isinstance(error, e.RunError):
        return Conflict(f"{text}; `{command('runs', 'show', error.run_id)}` says more")
    if isinstance(error, e.StoreError):
        return Unreachable(f"{text}; `{command('config')}` shows where the store's address comes from")
    if isinstance(error, e.HoldfastError):
        return Misuse(text)
    kind = type(error).__name__
    return Bug(f"{kind}: {text}; `holdfast --debug ...` shows where")


def usage(message: str) -> NoReturn:
    raise Misuse(message)
