"""Carries out a canvas inside a run: members are futures with a counter, not tasks, and results pass as they were
recorded, so that a chord of 100,000 members needs no more than their results.

Each part of a canvas has a path, such as `0.2`, and in a run of its own a step's path is the key of its command.
"""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.functions import child_options
from holdfast.api.options import StartOptions
from holdfast.codec import refer_to
from holdfast.core.canvases import NO_OPTIONS, CanvasNode, canvas_of, read
from holdfast.core.definitions import WorkflowDefinition, WorkflowOptions
from holdfast.core.execution import Execution
from holdfast.core.loop import Future, running
from holdfast.core.pending import Recorded
from holdfast.durations import to_us
from holdfast.errors import ChordError, GroupError, MemberError, in_words

WINDOW = 4_000
"""So many steps of one canvas are under way at once; the others wait for their turn, and take no memory meanwhile."""

LARGEST_COPY = 16 * 1024
"""An argument with more bytes is recorded as a reference: it is in the history already."""

Done = Callable[[bytes | None, BaseException | None], None]


async def run_canvas(input: Raw) -> Recorded:
    """The workflow that a canvas is, when it is started as a run of its own."""
    loop = running()
    assert loop is not None
    return Recorded(await begin(loop.execution, canvas_of(input), keyed=True, raw=True))


def begin(execution: Execution, canvas: bytes | Raw, *, keyed: bool = False, raw: bool = False) -> Future[Any]:
    """Begin a canvas in a run; the future has its result, or its exception, once all of it has come to an end."""
    return Conductor(execution, keyed, raw).begin(read(canvas))


NAMES = ("holdfast.chain", "holdfast.chord", "holdfast.group", "holdfast.map")
"""What the runs of canvases are called. One workflow carries out all of them."""

DEFINITIONS = {
    name: WorkflowDefinition(name, run_canvas, True, WorkflowOptions(), None, Any, __file__, raw=True) for name in NAMES
}


class Conductor:
    """One canvas under way."""

    def __init__(self, execution: Execution, keyed: bool, raw: bool) -> None:
        self.execution = execution
        self.codec = execution.codec
        self._keyed = keyed
        self._raw = raw
        self._waiting: deque[Leaf] = deque()
        self._feeds: deque[Group] = deque()
        self._under_way = 0
        self._open = 1  # the canvas itself, and every callback and errback beside it
        self._outcome: tuple[bytes | None, BaseException | None] = (None, None)
        self._root: Part | None = None
        self._beside: list[Part] = []
        self._held_back: list[tuple[Raw, bytes, str]] = []
        self._pumping = False
        self._future: Future[Any] = Future(execution.loop, self._cancel)

    def begin(self, node: CanvasNode) -> Future[Any]:
        self._root = self.make(node, None, "0", self._root_done)
        self._root.begin()
        self.pump()
        return self._future

    def make(self, node: CanvasNode, previous: bytes | None, path: str, done: Done) -> Part:
        """The part that carries out a node, with its callbacks around it."""
        if node.link or node.link_error:
            done = self.with_callbacks(node, path, done)
        if node.chain is not None:
            return Chain(self, node, previous, path, done)
        if node.group is not None or node.chord is not None:
            return Group(self, node, previous, path, done)
        if bytes(node.map):
            return Map(self, node, previous, path, done)
        return Leaf(self, node, previous, path, done)

    def with_callbacks(self, node: CanvasNode, path: str, done: Done) -> Done:
        def ended(result: bytes | None, error: BaseException | None) -> None:
            if error is None:
                for i, callback in enumerate(node.link):
                    self._run_beside(callback, result, f"{path}.link{i}")
            else:
                told = self.codec.encode_error_value(error)
                self._held_back += [(errback, told, f"{path}.error{i}") for i, errback in enumerate(node.link_error)]
                if not self._is_tried_again(error):
                    self._run_errbacks()
            done(result, error)

        return ended

    def _is_tried_again(self, error: BaseException) -> bool:
        """Whether the run has another attempt, should this be its end: then it has not failed for good."""
        execution = self.execution
        return self._keyed and execution.program.retry_delay(error, execution.journal.attempt) is not None

    def _run_errbacks(self) -> None:
        held_back, self._held_back = self._held_back, []
        for errback, told, path in held_back:
            self._run_beside(errback, told, path)

    def _run_beside(self, callback: Raw, previous: bytes | None, path: str) -> None:
        """A callback changes nothing about what it is a callback of; only the end of the canvas waits for it."""
        self._open += 1
        part = self.make(read(callback), previous, path, lambda result, error: self._close())
        self._beside.append(part)
        part.begin()

    # -- how many at once

    def feed(self, group: Group) -> None:
        """Members to begin as there is room."""
        self._feeds.append(group)

    def want(self, leaf: Leaf) -> None:
        self._waiting.append(leaf)

    def freed(self) -> None:
        self._under_way -= 1

    def pump(self) -> None:
        """Begin what there is room for: what a chain goes on with first, then further members of groups."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._under_way < WINDOW:
                if self._waiting:
                    leaf = self._waiting.popleft()
                    if not leaf.over:
                        self._under_way += 1
                        leaf.ask()
                elif self._feeds:
                    if not self._feeds[0].begin_next():
                        self._feeds.popleft()
                else:
                    break
        finally:
            self._pumping = False

    # -- the end

    def _root_done(self, result: bytes | None, error: BaseException | None) -> None:
        self._outcome = (result, error)
        if error is None or not self._is_tried_again(error):
            self._run_errbacks()
        self._close()

    def _close(self) -> None:
        self._open -= 1
        if self._open or self._future.done():
            return
        result, error = self._outcome
        if error is not None:
            self._future.set_exception(error)
        else:
            assert result is not None
            self._future.set_result(Raw(result) if self._raw else self.codec.decode(result))

    def give_up(self, error: BaseException) -> None:
        """The canvas itself can't go on."""
        if not self._future.done():
            self._cancel()
            self._future.set_exception(error)

    def _cancel(self) -> None:
        for part in (self._root, *self._beside):
            if part is not None:
                part.cancel()

    def key(self, path: str) -> str:
        return path if self._keyed else ""


class Part(abc.ABC):
    """One node under way. `done` is called once, with a result as it is recorded or with an exception."""

    def __init__(self, conductor: Conductor, node: CanvasNode, previous: bytes | None, path: str, done: Done) -> None:
        self.conductor = conductor
        self.node = node
        self.previous = previous
        self.path = path
        self.over = False
        self._done = done

    @abc.abstractmethod
    def begin(self) -> None: ...

    @abc.abstractmethod
    def cancel(self) -> None:
        """Stop, and tell nobody."""

    def end(self, result: bytes | None, error: BaseException | None = None) -> None:
        if not self.over:
            self.over = True
            self._done(result, error)


class Leaf(Part):
    """A step, or a workflow as a child."""

    _future: asyncio.Future[Any] | None = None
    _timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        delay = self._options().get("delay")
        if delay is None:
            self.conductor.want(self)
        else:
            loop = self.conductor.execution.loop
            self._timer = loop.call_later(to_us(delay, "delay") / 1_000_000, self._delayed)

    def _delayed(self) -> None:
        self.conductor.want(self)
        self.conductor.pump()

    def _options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        return found if self.node.options is NO_OPTIONS else self.conductor.codec.decode(self.node.options)

    def ask(self) -> None:
        node, join = self.node, self.conductor.codec.join_call
        args = [bytes(arg) for arg in node.args]
        if self.previous is not None and not node.immutable:
            args.insert(0, self.previous)
        kwargs = {name: bytes(arg) for name, arg in node.kwargs.items()}
        resolve = None
        recorded = join(args, kwargs)
        if len(recorded) > LARGEST_COPY:
            named = {name: _recorded(arg) for name, arg in kwargs.items()}
            recorded, resolve = join([_recorded(arg) for arg in args], named), lambda: join(args, kwargs)
        self._future = self._ask(Raw(recorded), resolve)
        self._future.add_done_callback(self._ended)

    def _ask(self, call: Raw, resolve: Callable[[], bytes] | None) -> asyncio.Future[Any]:
        execution, node = self.conductor.execution, self.node
        options = {name: value for name, value in self._options().items() if name != "delay"}
        key = self.conductor.key(self.path)
        if node.step:
            return execution.steps.ask(node.step, call, options=options, key=key, resolve=resolve, raw=True)
        chosen = child_options(StartOptions(**options), node.durable, execution.loop.now)
        child = execution.children.ask(
            node.workflow, call, options=chosen, waited=True, abandon=False, key=key, resolve=resolve, raw=True
        )
        return child.future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self.conductor.freed()
        try:
            if future.cancelled():
                self.over = True
            else:
                error = future.exception()
                self.end(bytes(future.result()) if error is None else None, error)
            self.conductor.pump()
        except Exception as error:  # a result that can't be read here, a child that can't be started
            self.conductor.give_up(error)

    def cancel(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._future is not None:
            self._future.cancel()


def _recorded(arg: bytes) -> bytes:
    return arg if len(arg) <= LARGEST_COPY else refer_to([arg], f"{len(arg):,} bytes, recorded earlier")


class InTurn(Part):
    """Something of which one part is under way at a time."""

    _current: Part | None = None

    def cancel(self) -> None:
        self.over = True
        if self._current is not None:
            self._current.cancel()


class Chain(InTurn):
    """One after the other."""

    _at = 0
    _begins = False
    _at_once: bytes | None = None

    def begin(self) -> None:
        self._go_on(self.previous)

    def _go_on(self, previous: bytes | None) -> None:
        """Begin the next member, and those after it for as long as they end at once: some have nothing to do."""
        assert self.node.chain is not None
        self._begins = True
        while previous is not None or self._at == 0:
            member = read(self.node.chain[self._at])
            self._current = self.conductor.make(member, previous, f"{self.path}.{self._at}", self._member_done)
            self._at += 1
            self._at_once = None
            self._current.begin()
            previous = self._at_once
        self._begins = False

    def _member_done(self, result: bytes | None, error: BaseException | None) -> None:
        assert self.node.chain is not None
        if self.over:
            return
        if error is not None or self._at == len(self.node.chain):
            self.end(result, error)
        elif self._begins:
            self._at_once = result
        else:
            self._go_on(result)


class Map(InTurn):
    """A step for each item, one after the other; the result is the list of results."""

    def begin(self) -> None:
        self._step = read(self.node.map)
        self._results: list[bytes] = []
        self._go_on()

    def _go_on(self) -> None:
        at = len(self._results)
        if at == len(self.node.items):
            self.end(self.conductor.codec.join_list(self._results))
            return
        call = msgspec.structs.replace(self._step, args=[*self.node.items[at], *self._step.args])
        self._current = self.conductor.make(call, None, f"{self.path}.{at}", self._item_done)
        self._current.begin()

    def _item_done(self, result: bytes | None, error: BaseException | None) -> None:
        if self.over:
            return
        if error is not None:
            self.end(None, error)
            return
        assert result is not None
        self._results.append(result)
        self._go_on()


class Group(Part):
    """All at once, joined by a counter; the header and body of a chord too."""

    def begin(self) -> None:
        node = self.node
        self._members = node.chord if node.chord is not None else (node.group or [])
        self._results: list[bytes | None] = [None] * len(self._members)
        self._errors: dict[int, BaseException] = {}  # in the order they came
        self._left = len(self._members)
        self._next = 0
        self._begun: dict[int, Part] = {}
        self._body: Part | None = None
        if self._members:
            self.conductor.feed(self)
        else:
            self._join()

    def begin_next(self) -> bool:
        """Begin another member; whether there are more."""
        if self.over or self._next >= len(self._members):
            return False
        index = self._next
        self._next += 1
        part = self.conductor.make(
            read(self._members[index]),
            self.previous,
            f"{self.path}.{index}",
            lambda result, error: self._member_done(index, result, error),
        )
        self._begun[index] = part
        part.begin()
        return self._next < len(self._members)

    def _member_done(self, index: int, result: bytes | None, error: BaseException | None) -> None:
        self._begun.pop(index, None)
        if self.over:
            return
        self._left -= 1
        if error is None:
            self._results[index] = result
        else:
            self._errors[index] = error
            if self.node.on_failure == "cancel":
                self._stop_members()
                self._fail()
                return
        if not self._left:
            self._join()

    def _join(self) -> None:
        if self._errors and self.node.on_failure != "collect":
            self._fail()
            return
        codec = self.conductor.codec
        for index, error in self._errors.items():
            self._results[index] = codec.encode_error_value(error)
        joined = codec.join_list(result for result in self._results if result is not None)
        self._results = []
        if self.node.chord is None:
            self.end(joined)
            return
        self._body = self.conductor.make(read(self.node.body), joined, f"{self.path}.body", self._body_done)
        self._body.begin()

    def _body_done(self, result: bytes | None, error: BaseException | None) -> None:
        self.end(result, error)

    def _fail(self) -> None:
        index, error = next(iter(self._errors.items()))
        is_chord = self.node.chord is not None
        member = read(self._members[index]).title
        whole = "chord's header" if is_chord else "group"
        others = len(self._errors) - 1
        also = f" ({others} other{'s' if others > 1 else ''} of {len(self._members)} failed too)" if others else ""
        failure: MemberError = (ChordError if is_chord else GroupError)(
            f"member {index} of the {whole}, {member}, failed: {in_words(error)}{also}",
            member=member.strip("'"),
            index=index,
            others=self._others(index),
        )
        failure.__cause__ = error
        if is_chord:  # the body has failed with it, as far as its errbacks are concerned
            body = read(self.node.body)
            self.conductor.with_callbacks(body, f"{self.path}.body", self._body_done)(None, failure)
        else:
            self.end(None, failure)

    def _others(self, index: int) -> list[Any]:
        """What became of all but one: values and exceptions; None for one that was cancelled."""
        decode = self.conductor.codec.decode
        return [
            self._errors.get(i) or (None if result is None else decode(result))
            for i, result in enumerate(self._results)
            if i != index
        ]

    def _stop_members(self) -> None:
        for part in list(self._begun.values()):
            part.cancel()
        self._begun.clear()

    def cancel(self) -> None:
        self.over = True
        self._stop_members()
        if self._body is not None:
            self._body.cancel()
