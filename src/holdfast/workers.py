"""Workers of an app in this process: engines, executors, what a Celery worker's pool executes with."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import failpoints
from holdfast.api.checks import check_number, check_queue
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.registry import refuse_while_importing
from holdfast.errors import ArgumentError, DefinitionError
from holdfast.ports import Carrier
from holdfast.printing import show
from holdfast.registry import Registry
from holdfast.storage import Storage

if TYPE_CHECKING:
    from holdfast.engine.carried import CarriedHost
    from holdfast.engine.host import Host
    from holdfast.engine.settings import Settings
    from holdfast.telemetry.dispatcher import EventDispatcher
    from holdfast.wiring import WorkerParts

logger = logging.getLogger("holdfast")
SHOWN = 5  # annotations in one warning


class Workers:
    """Makes workers for what an app defines. `build` names its code, `exchange` is what sends telemetry events through a
    broker."""

    def __init__(
        self,
        definitions: Registry,
        storage: Storage,
        build: Callable[[], str],
        exchange: Callable[[], EventDispatcher | None],
    ) -> None:
        self._definitions = definitions
        self._storage = storage
        self._build = build
        self._exchange = exchange

    def engine(
        self,
        concurrency: int,
        processes: int | None,
        settings: Settings | None,
        queues: Sequence[str] | None,
        carrier: Carrier | None,
    ) -> Host:
        served = None if queues is None else check_queues(queues)
        self._check(concurrency, processes)
        return self._made(settings, lambda parts: parts.engine(served, concurrency, processes, carrier))

    def executor(
        self, queues: Sequence[str], concurrency: int, processes: int | None, settings: Settings | None
    ) -> Host:
        served = check_queues(queues)
        if not served:
            raise ArgumentError("queues=[]: name at least one queue; 'default' is that of steps that name none")
        self._check(concurrency, processes)
        return self._made(settings, lambda parts: parts.puller(served, concurrency, processes))

    def carried(self, queues: Sequence[str], is_apart: bool, is_ending: Callable[[], bool]) -> CarriedHost:
        """What executes attempts in a process of a Celery worker's pool, begun."""
        self._check()
        host = self._parts(None).carried(queues, is_apart, is_ending)
        host.begin()
        return host

    def _check(self, concurrency: int = 1, processes: int | None = None) -> None:
        refuse_while_importing("a worker is started")
        check_count("concurrency", concurrency)
        if processes is not None:
            check_count("processes", processes)

    def _made(self, settings: Settings | None, make: Callable[[WorkerParts], Host]) -> Host:
        return make(self._parts(settings))

    def _parts(self, settings: Settings | None) -> WorkerParts:
        from holdfast.wiring import WorkerParts  # not at the top: see wiring.py

        failpoints.arm_from_environment()
        self._definitions.load()
        self._warn_of_annotations()
        store, notifier = self._storage.open_for_work()
        return WorkerParts(
            self._definitions, store, notifier, self._build(), self.description(), self._exchange, settings
        )

    def _warn_of_annotations(self) -> None:
        """Of those that mean nothing here: what they ask for is not made of the data that arrives."""
        unresolved = self._definitions.codec.types.unresolved()
        if unresolved:
            logger.warning(
                "%s, so values are taken as they come there; import what it names at run time, not under TYPE_CHECKING",
                "; ".join(unresolved[:SHOWN])
                + (f"; {len(unresolved) - SHOWN} more" if len(unresolved) > SHOWN else ""),
            )

    @contextlib.contextmanager
    def running(self, host: Host, grace: float) -> Iterator[Host]:
        """On a thread of its own, until the block ends."""
        process = os.getpid()
        host.start()
        host.launch()
        try:
            yield host
        finally:
            if os.getpid() == process:  # one that was forked meanwhile has none of its threads
                host.stop(grace)
                host.wait(grace + 10)
                self._storage.close_unless_shared(host.store)

    def load_for_pool(self) -> None:
        """Import what the processes of a pool need before they are forked, so that none of them has to. Nothing is opened."""
        from holdfast.wiring import import_store  # not at the top: see wiring.py

        self._definitions.load()
        import_store(self._storage.url)

    def description(self) -> dict[str, Any] | None:
        """How a process of its own finds the app; None if it can't."""
        known = self._definitions
        functions: list[Any] = [step.function for step in known.steps.values()]
        functions += [workflow.function for workflow in known.workflows.values()]
        wrappers = [around.function.__module__ for around in (*known.arounds, *known.start_arounds)]
        modules = {str(getattr(f, "func", f).__module__) for f in functions} | {*known.include, *wrappers}
        main_file = ""
        if "__main__" in modules:
            main = sys.modules["__main__"]
            spec = getattr(main, "__spec__", None)
            if spec is not None:  # python -m package.module
                modules.add(spec.name)
            else:
                main_file = getattr(main, "__file__", None) or ""
                if not main_file or main_file.startswith("<"):  # typed in, or read from stdin
                    return None
        first = list(dict.fromkeys(wrappers))  # what surrounds the others may have to be there before them
        return {
            "app": known.name,
            "modules": [m for m in [*first, *sorted(modules - {*first})] if m != "__main__"],
            "main_file": main_file,
            "store": self._storage.address,
        }

    def description_of_engine(self) -> dict[str, Any]:
        """How the process of an engine finds the app."""
        description = self.description()
        if description is None:
            raise DefinitionError(
                f"app {self._definitions.name!r} is defined where no other process can import it; define it in a module"
            )
        return description


def digest_of(definitions: Registry) -> str:
    """Of the modules that define the app."""
    definitions.load()
    defined: list[StepDefinition | WorkflowDefinition] = [*definitions.workflows.values()]
    defined = defined or [*definitions.steps.values()]
    files = {inspect.getsourcefile(inspect.unwrap(d.function)) for d in defined}
    files |= {d.place.rpartition(":")[0] for d in defined}  # of a composition: where it is made
    digest = hashlib.sha256()
    for file in sorted(f for f in files if f and Path(f).is_file()):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:12]


def check_queues(queues: Any) -> list[str]:
    if not isinstance(queues, list | tuple | set | frozenset):
        raise ArgumentError(
            f"queues={show(queues)}: give a list of names; 'default' is the queue of steps that name none"
        )
    return sorted({check_queue(queue) for queue in queues})


def check_count(what: str, value: Any) -> None:
    check_number(what, value, 1, why="; without any its steps would wait for ever")
