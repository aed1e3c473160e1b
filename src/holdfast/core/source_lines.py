"""Where code stands, in words: lines of the user's own code, for errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any, NamedTuple

from holdfast.core.loop import Task

_OURS = ("holdfast.", "asyncio.")


class SourceLine(NamedTuple):
    """A place in code, to be put into words only when it is needed."""

    code: CodeType
    instruction: int

    def __str__(self) -> str:
        lines = (line for start, end, line in self.code.co_lines() if start <= self.instruction < end)
        return _in_words(self.code, next(lines, None) or self.code.co_firstlineno)


def source_line(frame: FrameType | None) -> SourceLine | None:
    """The nearest line of code that is not Holdfast's or asyncio's, from this frame on outwards."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code, frame.f_lasti)


def code_line() -> str:
    return str(source_line(sys._getframe(1)) or "")


def task_lines(task: Task[Any], users_own: bool = False) -> list[str]:
    """Where a suspended task stands, outermost first: all of it, or only the lines of users."""
    driver: Any = task.get_coro()
    frames: list[FrameType] = []
    if driver is not None and driver.runner is not None:
        stack = [frame for frame, _ in traceback.walk_stack(driver.runner.gr_frame)]
        frames = [frame for frame in reversed(stack) if not _is_ours(frame, ("holdfast.core.",))]
    coro: Any = driver.coro if driver is not None and not frames else None
    while coro is not None and getattr(coro, "cr_frame", None) is not None:
        frames.append(coro.cr_frame)
        coro = coro.cr_await
    return [_line(frame) for frame in frames if not (users_own and _is_ours(frame))]


def lines_of_error(error: BaseException) -> list[str]:
    """The lines of users that an exception came through, outermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    return [_in_words(frame.f_code, number) for frame, number in frames if not _is_ours(frame)]


def _is_ours(frame: FrameType, modules: tuple[str, ...] = _OURS) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(modules)


def _line(frame: FrameType) -> str:
    return _in_words(frame.f_code, frame.f_lineno)


# -- code that is under way


def package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def frames_of_users(frame: FrameType | None) -> list[FrameType]:
    """From this one, the innermost, out to the function that Holdfast has called."""
    frames: list[FrameType] = []
    while frame is not None and package_of(frame) != "holdfast":
        frames.append(frame)
        frame = frame.f_back
    return frames


def line_of_users(frames: list[FrameType], libraries: Collection[str] = ()) -> str:
    """The line to correct: not in a library that the function uses, unless that is where the function itself is."""
    frames = [frame for frame in frames if package_of(frame) not in libraries]
    if not frames:
        return ""
    home = package_of(frames[-1])
    return _line(next(frame for frame in frames if package_of(frame) == home or not _is_installed(frame)))


def line_of_thread(thread: int | None, libraries: Collection[str] = ()) -> str:
    """The line of users that a thread is at."""
    return _line_around(sys._current_frames().get(thread or 0), libraries)


def line_of_caller(libraries: Collection[str] = ()) -> str:
    """The line of users that this is called from."""
    return _line_around(sys._getframe(1), libraries)


def _line_around(frame: FrameType | None, libraries: Collection[str]) -> str:
    while frame is not None and package_of(frame) == "holdfast":  # called by users, or in place of what they call
        frame = frame.f_back
    return line_of_users(frames_of_users(frame), libraries) or "an unknown line"


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return "/site-packages/" in file or "/dist-packages/" in file or package_of(frame) in sys.stdlib_module_names


def _in_words(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"
