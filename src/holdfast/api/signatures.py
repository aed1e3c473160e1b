"""Signatures: calls as plain data, to be put together with `|`, `chain`, `group` and `chord`, then started as one run.

The spelling is Celery's. What is here only builds and checks; `compose.canvas` carries it out.
"""

from __future__ import annotations

import abc
import asyncio
import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from holdfast.api.calls import StepFuture
from holdfast.api.canvas_writer import Writer, afterwards, check_partial
from holdfast.api.checks import check_arguments, check_flag, check_number, duration_of, one_of
from holdfast.api.direct_calls import call_directly
from holdfast.api.handles import NoRun, Run
from holdfast.api.options import (
    RunWords,
    StartOptions,
    start_options_of,
    step_options,
    takes,
)
from holdfast.api.others_words import hint_at
from holdfast.api.owner import Owner
from holdfast.core.canvases import CanvasNode, OnFailure
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.execution import Execution
from holdfast.core.loop import running
from holdfast.core.registry import find_app
from holdfast.errors import ArgumentError, DefinitionError, WrongContextError
from holdfast.printing import printable, show

C = TypeVar("C", bound="Canvas")

STEP_OPTIONS = ("delay", "force_local", "max_losses", "max_retries", "queue", "retry_delay", "stall_timeout", "timeout")
WORKFLOW_OPTIONS = ("delay", "max_retries", "priority", "timeout")
RENAMED = {"countdown": "delay"}


class Canvas(abc.ABC):
    """Anything that can be put together and started: a signature, a chain, a group, a chord."""

    _run_name: str
    _of_members: tuple[str, ...] = ("queue",)  # options of `apply_async` that are not the run's

    def __init__(self) -> None:
        self._links: list[Canvas] = []
        self._errbacks: list[Canvas] = []

    @property
    @abc.abstractmethod
    def app(self) -> Owner:
        """The app that its steps belong to."""

    # -- putting together

    def __or__(self, other: object) -> chain:
        return chain(self, other) if isinstance(other, Canvas) else NotImplemented

    def __invert__(self) -> Any:
        """Celery's short form of `start().result()`: `~sig` starts it and waits for its result."""
        if running() is not None:
            raise WrongContextError(f"~{self!r} in a workflow: await it")
        return self.start().result()

    def link(self, callback: C) -> C:
        """Run `callback` with the result, on success. Its own outcome changes nothing. Returns the callback."""
        self._links.append(_member(callback, "link"))
        return callback

    def link_error(self, errback: C) -> C:
        """Run `errback` with the exception, once, when this has finally failed. Returns the errback."""
        self._errbacks.append(_member(errback, "link_error"))
        return errback

    def on_error(self: C, errback: Canvas) -> C:
        """`link_error` that returns this, to go on with."""
        self.link_error(errback)
        return self

    def clone(self: C, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> C:
        """A copy, with `args` before its own, `kwargs` beside them, and options set."""
        made = self._copy(*check_arguments(args, kwargs))
        made._links = [callback.clone() for callback in self._links]
        made._errbacks = [errback.clone() for errback in self._errbacks]
        return made.set(**options) if options else made

    @abc.abstractmethod
    def set(self: C, **options: Any) -> C:
        """Set options: `max_retries`, `timeout`, `queue`, `retry_delay`, `delay` (or `countdown`) and others. Of a
        composition they are those of every member that doesn't have its own. Returns this."""

    @abc.abstractmethod
    def set_immutable(self: C, immutable: bool = True) -> C:
        """Ignore the result of what comes before. Returns this."""

    @abc.abstractmethod
    def _copy(self: C, args: tuple[Any, ...], kwargs: dict[str, Any]) -> C:
        """A copy of its own shape, with further arguments for whatever begins it."""

    # -- as data

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON data, for `holdfast.signature(...)`."""
        return {"app": self.app.name, **msgspec.json.decode(Writer(self.app).write(self, None))}

    @abc.abstractmethod
    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        """This as data, without its callbacks. `given` tells whether a result comes before it; None: not known yet."""

    @property
    def _is_plain(self) -> bool:
        """Whether nothing hangs on it as a whole, so that it may become a part of something larger."""
        return not self._links and not self._errbacks

    # -- starting

    def start(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start it as one run, with further arguments for its beginning. It is durable when this returns."""
        return CanvasOptions(self, StartOptions()).start(*args, **kwargs)

    async def astart(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """`start` for async code."""
        return await CanvasOptions(self, StartOptions()).astart(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def apply_async(
        self,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        link: Canvas | Iterable[Canvas] = (),
        link_error: Canvas | Iterable[Canvas] = (),
        **options: Any,
    ) -> Run[Any]:
        """Celery's spelling of `options(...).start(...)`: `countdown`, `eta`, `task_id` mean delay, at, id. `queue` is
        that of its members."""
        canvas = self.clone(args, kwargs)
        of_members = {name: options.pop(name) for name in self._of_members if name in options}
        if of_members:
            canvas.set(**of_members)
        for callback in _callbacks(link, "link"):
            canvas.link(callback)
        for errback in _callbacks(link_error, "link_error"):
            canvas.link_error(errback)
        return CanvasOptions(canvas, start_options_of(f"{self!r}.apply_async()", options)).start()

    @takes(RunWords)
    def options(self, **words: Unpack[RunWords]) -> CanvasOptions:
        """Say more about the run: `canvas.options(id="night-17").start()`."""
        return CanvasOptions(self, StartOptions(**words))

    def submit(self, *args: Any, **kwargs: Any) -> StepFuture[Any]:
        """Begin it in the workflow that calls, without waiting: await what this gives, or call its `.result()`."""
        loop = running()
        if loop is None:
            raise WrongContextError(f"{self!r} is awaited or submitted in a workflow; elsewhere use .start()")
        execution: Execution = loop.execution
        if execution.info.app != self.app.name:
            raise WrongContextError(
                f"{self!r} belongs to app {self.app.name!r}, but this run to {execution.info.app!r}; start it from a step"
            )
        return StepFuture(self.app.run_canvas(execution, self._encoded(args, kwargs)))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.submit().__await__()

    if not TYPE_CHECKING:  # a type checker would take it for a canvas that can be iterated

        def __iter__(self) -> Iterator[Any]:
            raise TypeError(
                f"{self!r} says what to call, and has no results to iterate over: `await` it in a workflow (in `def` code: "
                ".submit().result()), or .start() it, and iterate over what that gives"
            )

    def _encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        canvas = self.clone(args, kwargs) if args or kwargs else self
        return bytes(Writer(self.app).write(canvas, False))


class CanvasOptions:
    """A canvas with more said about the run that it will be."""

    def __init__(self, canvas: Canvas, options: StartOptions) -> None:
        self._canvas = canvas
        self._options = options

    def start(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start it as one run, with these options."""
        return self._prepare(args, kwargs)()

    async def astart(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """`start` for async code."""
        start = self._prepare(args, kwargs)
        return start() if self._options.connection is not None else await asyncio.to_thread(start)

    def delay(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Celery's spelling of `start`."""
        return self.start(*args, **kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Run[Any]]:
        canvas = self._canvas
        if running() is not None:
            raise WrongContextError(
                f"{canvas!r}.start() in a workflow: await it, or use .submit(); a run of its own is for outside"
            )
        if isinstance(canvas, group) and not canvas.tasks and canvas._is_plain and canvas._home is None:
            return NoRun  # nothing says which app it would be a run of, and there is nothing to do
        call = b'{"args":[' + canvas._encoded(args, kwargs) + b"]}"
        options = self._options.with_id_in_step(canvas._run_name)
        return lambda: canvas.app.start_run(canvas._run_name, call, options)


# -- the shapes


class Signature(Canvas):
    """A call of a step or workflow that has not been made: `step.s(1, 2)`. What comes before it in a chain gives its
    first argument, unless it is immutable: `step.si(1, 2)`."""

    _run_name = "holdfast.chain"
    _of_members = ("queue", "max_retries", "timeout")

    def __init__(
        self,
        app: Owner,
        definition: StepDefinition | WorkflowDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        immutable: bool = False,
    ) -> None:
        super().__init__()
        self._app = app
        self.definition = definition
        self.args = args
        self.kwargs = kwargs
        self.chosen: dict[str, Any] = {}
        self.immutable = immutable
        if args or kwargs:
            check_partial(definition, args, kwargs)

    @property
    def app(self) -> Owner:
        return self._app

    @property
    def name(self) -> str:
        """The name of its step or workflow."""
        return self.definition.name

    @property
    def is_step(self) -> bool:
        """Whether it calls a step, and not a workflow."""
        return isinstance(self.definition, StepDefinition)

    def __repr__(self) -> str:
        given = [*(in_short(arg) for arg in self.args), *(f"{k}={in_short(v)}" for k, v in self.kwargs.items())]
        return f"{self.name}({', '.join(given)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function now: a plain call outside of a run."""
        if running() is not None:
            raise WrongContextError(f"{self!r} in a workflow: await it, or call {self.name} itself")
        args, kwargs = (*args, *self.args), {**self.kwargs, **kwargs}
        if isinstance(self.definition, StepDefinition):
            return call_directly(self.definition, args, kwargs, self._app.definitions.replaced)
        return self.definition.function(*args, **kwargs)

    def set(self, **options: Any) -> Signature:
        known = STEP_OPTIONS if self.is_step else WORKFLOW_OPTIONS
        if "immutable" in options:
            self.set_immutable(check_flag("immutable", options.pop("immutable"), ArgumentError))
        for given, value in options.items():
            name = RENAMED.get(given, given)
            if name not in known:
                what = "step" if self.is_step else "workflow"
                hint = hint_at(given, known) or f"; known: {', '.join(known)}"
                raise ArgumentError(f"{self!r}.set(): a {what} has no option {given!r}{hint}")
            self.chosen[name] = value
        self._check_options()
        return self

    def _check_options(self) -> None:
        options = {name: value for name, value in self.chosen.items() if name != "delay"}
        try:
            if "delay" in self.chosen:
                duration_of("delay", self.chosen["delay"])
            if self.is_step:
                step_options(options)
            else:
                StartOptions(**options)
        except DefinitionError as error:
            raise ArgumentError(f"{self!r}.set(): {error}") from None

    def set_immutable(self, immutable: bool = True) -> Signature:
        self.immutable = immutable
        return self

    def _copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        if self.immutable:
            args, kwargs = (), {}
        made = Signature(self._app, self.definition, (*args, *self.args), {**self.kwargs, **kwargs}, self.immutable)
        made.chosen = dict(self.chosen)
        return made

    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        writer.check_app(self)
        writer.check(self, given)
        what = f"an argument of {self.name!r}"
        node = CanvasNode(
            args=[writer.value(arg, what) for arg in self.args],
            kwargs={name: writer.value(arg, what) for name, arg in self.kwargs.items()},
            immutable=self.immutable,
        )
        writer.check_values(self, given, what)
        if self.chosen:
            node.options = writer.value(self.chosen, f"the options of {self!r}")
        if isinstance(self.definition, WorkflowDefinition):
            node.workflow, node.durable = self.name, self.definition.options.durable
        else:
            node.step = self.name
        return node


class _Composition(Canvas):
    """A canvas that is made of others. The first `_begins` of its parts get what comes before it."""

    _home: Owner | None = None  # the app, where there are no members to tell it

    @property
    @abc.abstractmethod
    def _parts(self) -> list[Canvas]: ...

    @_parts.setter
    def _parts(self, parts: list[Canvas]) -> None: ...

    @property
    @abc.abstractmethod
    def _begins(self) -> int: ...

    @property
    def app(self) -> Owner:
        for part in self._parts:
            if not isinstance(part, _Composition) or part._parts or part._home is not None:
                return part.app
        loop = running()
        found: Any = self._home if loop is None else find_app(loop.execution.info.app)
        if found is None:
            raise ArgumentError(
                f"{self!r} has no members, so nothing says which app it is for; start it only if it has some"
            )
        return found  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's short form: start it; in a workflow, begin it without waiting."""
        return self.start(*args, **kwargs) if running() is None else self.submit(*args, **kwargs)

    def _copy(self: C, args: tuple[Any, ...], kwargs: dict[str, Any]) -> C:
        made: Any = copy.copy(self)
        parts = enumerate(made._parts)
        made._parts = [part.clone(args, kwargs) if i < made._begins else part.clone() for i, part in parts]
        return made  # type: ignore[no-any-return]

    def set(self: C, **options: Any) -> C:
        if "immutable" in options:
            self.set_immutable(check_flag("immutable", options.pop("immutable"), ArgumentError))
        parts = self._parts = [part.clone() for part in self._parts]  # type: ignore[attr-defined]
        for part in parts:  # others may be made of the same ones
            mine = {k: v for k, v in options.items() if RENAMED.get(k, k) not in getattr(part, "chosen", ())}
            if mine:
                part.set(**mine)
        return self

    def set_immutable(self: C, immutable: bool = True) -> C:
        parts = self._parts = [part.clone() for part in self._parts]  # type: ignore[attr-defined]
        for part in parts[: self._begins]:  # type: ignore[attr-defined]
            part.set_immutable(immutable)
        return self


class _Members(_Composition):
    """A composition whose parts are its tasks."""

    tasks: list[Canvas]

    @property
    def _parts(self) -> list[Canvas]:
        return self.tasks

    @_parts.setter
    def _parts(self, parts: list[Canvas]) -> None:
        self.tasks = parts

    @property
    def _begins(self) -> int:
        return len(self.tasks)


class chain(_Members):
    """One after the other, each with the result of the one before: `chain(a.s(1), b.s())`, or `a.s(1) | b.s()`."""

    _run_name = "holdfast.chain"

    def __init__(self, *members: Any) -> None:
        super().__init__()
        self.tasks = []
        for member in _members(members, "chain"):
            spliced = member.tasks if isinstance(member, chain) and member._is_plain else [member]
            if not self.tasks and len(spliced) > 1:
                self.tasks = list(spliced)  # put together already: so a chain that grows by `|` is copied, not remade
                continue
            for task in spliced:
                self._append(task)

    def _append(self, task: Canvas) -> None:
        if self.tasks and isinstance(task, group) and not task.tasks and task._is_plain:
            return  # an empty group lets pass what comes
        last = self.tasks[-1] if self.tasks else None
        if isinstance(last, group) and last._is_plain and type(last) is group:
            self.tasks[-1] = chord(last, task)
        elif isinstance(last, chord) and last._is_plain and last.body is not None and _ends_open(last.body):
            self.tasks[-1] = chord(last.header, chain(last.body, task), on_failure=last.on_failure)
        else:
            self.tasks.append(task)

    @property
    def _begins(self) -> int:
        return 1

    def __repr__(self) -> str:
        return " | ".join(_shorten(self.tasks)) if self.tasks else "chain()"

    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        if not self.tasks:
            raise ArgumentError("chain(): a chain needs a member, e.g. chain(step.s(...), other.s())")
        return CanvasNode(
            chain=[writer.write(task, given if i == 0 else afterwards(given)) for i, task in enumerate(self.tasks)]
        )


class group(_Members):
    """All at once: `group(a.s(1), b.s(2))`, or of any iterable. The result is the list of results, in this order."""

    _run_name = "holdfast.group"

    def __init__(self, *members: Any) -> None:
        super().__init__()
        self.tasks = []
        for member in _members(members, "group"):
            if type(member) is group and member._is_plain:
                self.tasks += member.tasks
            else:
                self.tasks.append(member)

    def __len__(self) -> int:
        return len(self.tasks)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"group({', '.join(_shorten(self.tasks))})"

    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        return CanvasNode(group=[writer.write(task, given) for task in self.tasks])


class chord(_Composition):
    """A group, then `body` with the list of its results: `chord([a.s(1), a.s(2)], total.s())`, or `group | body`.

    `on_failure` says what a failing member does: "finish" (the others finish, then the chord fails), "cancel" (they are
    cancelled), "collect" (the body gets values and exceptions, in place).
    """

    _run_name = "holdfast.chord"

    def __init__(self, header: Any, body: Canvas | None = None, *, on_failure: OnFailure = "finish") -> None:
        super().__init__()
        one_of("on_failure", on_failure, ("finish", "cancel", "collect"), ArgumentError)
        self.header = header if type(header) is group and header._is_plain else group(header)
        self.body = None if body is None else _member(body, "chord's body")
        self.on_failure = on_failure

    @property
    def tasks(self) -> list[Canvas]:
        """The members of its header."""
        return self.header.tasks

    @property
    def _parts(self) -> list[Canvas]:
        return [*self.header.tasks, *([] if self.body is None else [self.body])]

    @_parts.setter
    def _parts(self, parts: list[Canvas]) -> None:
        begins = self._begins
        self.header = copy.copy(self.header)
        self.header.tasks, self.body = parts[:begins], next(iter(parts[begins:]), None)

    @property
    def _begins(self) -> int:
        return len(self.header.tasks)

    def __call__(self, body: Canvas | None = None, **kwargs: Any) -> Any:
        """Celery's short form: `chord(header)(body)` starts it; in a workflow it begins without waiting."""
        whole = self
        if body is not None:
            whole = chord(self.header, body, on_failure=self.on_failure)
            whole._links, whole._errbacks = self._links, self._errbacks
        return whole.start(**kwargs) if running() is None else whole.submit(**kwargs)

    def __repr__(self) -> str:
        return f"chord([{', '.join(_shorten(self.header.tasks))}], {self.body!r})"

    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        if self.body is None:
            raise ArgumentError(f"{self!r} has no body: chord(header, body), or chord(header)(body)")
        header = [writer.write(task, given) for task in self.header.tasks]
        return CanvasNode(chord=header, body=writer.write(self.body, afterwards(given)), on_failure=self.on_failure)


class each(Canvas):
    """One step for each item, one after the other: what `step.map(items)` and `step.starmap(items)` give. The result is
    the list of results. What comes before it is ignored."""

    _run_name = "holdfast.map"

    def __init__(self, step: Signature, items: Iterable[Any], star: bool) -> None:
        super().__init__()
        self.step = step
        self.star = star
        self.items = items_of(items, step.name, star)

    @property
    def app(self) -> Owner:
        return self.step.app

    def __repr__(self) -> str:
        return f"{self.step.name}.{'starmap' if self.star else 'map'}({len(self.items)} items)"

    def set(self, **options: Any) -> each:
        self.step.set(**options)
        return self

    def set_immutable(self, immutable: bool = True) -> each:
        return self

    def _copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> each:
        return each(self.step.clone(), self.items, self.star)

    def _node(self, writer: Writer, given: bool | None) -> CanvasNode:
        writer.check_app(self)
        what = f"the items of {self!r}"
        calls = self.items if self.star else [(item,) for item in self.items]
        known = given if given is None else False
        for call in calls:
            each_call = Signature(self.app, self.step.definition, call, {})
            writer.check(each_call, known)
            writer.check_values(each_call, known, what)
        items = [[writer.value(arg, what) for arg in call] for call in calls]
        return CanvasNode(map=writer.write(self.step, None), items=items)


def items_of(items: Any, name: str, star: bool) -> list[Any]:
    if not isinstance(items, Iterable) or isinstance(items, Canvas):
        raise ArgumentError(f"the items of {name}: {in_short(items)}: give a list")
    found = list(items)
    for item in found if star else ():
        if not isinstance(item, Iterable):
            raise ArgumentError(f"the items of {name}: {in_short(item)}: each is a list of the arguments of one call")
    return [tuple(item) for item in found] if star else found


def chunks(step: Signature, items: Iterable[Any], size: int) -> group:
    """Items in chunks of `size`: the chunks at once, the items of a chunk one after the other."""
    check_number(f"{step.name}.chunks(): size", size, 1)
    items = items_of(items, step.name, star=True)
    made = group(each(step.clone(), items[i : i + size], star=True) for i in range(0, len(items), size))
    made._home = step.app
    return made


def _members(members: tuple[Any, ...], what: str) -> Iterator[Canvas]:
    if len(members) == 1 and not isinstance(members[0], Canvas):
        if not isinstance(members[0], Iterable) or isinstance(members[0], str | bytes | Mapping):
            _member(members[0], what)
        members = tuple(members[0])
    for member in members:
        yield _member(member, what)


def _callbacks(given: Any, what: str) -> Iterable[Any]:
    return given if isinstance(given, list | tuple) else [_member(given, what)]


def _member(member: Any, what: str) -> Any:
    if isinstance(member, Canvas):
        return member
    hint = "give signatures, e.g. step.s(1, 2)"
    if hasattr(member, "si"):
        hint = f"give its signature, {member.name}.s(...)"
    raise DefinitionError(f"{what}: {in_short(member)} is no signature; {hint}")


def _ends_open(body: Canvas) -> bool:
    """Whether the result is that of a group, which waits for a body."""
    if not body._is_plain:
        return False
    if isinstance(body, chain):
        return bool(body.tasks) and _ends_open(body.tasks[-1])
    return type(body) is group or (isinstance(body, chord) and body.body is not None and _ends_open(body.body))


def _shorten(tasks: list[Canvas]) -> list[str]:
    shown = [repr(task) for task in tasks[:5]]
    return shown if len(tasks) <= 5 else [*shown, f"… {len(tasks) - 5} more"]


def in_short(value: Any) -> str:
    try:
        text = printable(repr(value))
    except BaseException:  # a repr of a user's own may raise anything
        return show(value)
    return text if len(text) <= 60 else text[:57] + "…"
