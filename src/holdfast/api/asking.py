"""Asking runs from outside: a request is put into the inbox, and its answer waited for."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.inbox import Inbox, refuse_without_history
from holdfast.api.options import StartOptions
from holdfast.api.reading import RunReader, Which
from holdfast.api.requests import Ask, RequestDefinition, check_request, encode_request
from holdfast.api.results import Awaited, Waiter
from holdfast.api.starting import Starter
from holdfast.blocking import run_blocking
from holdfast.core.context import current_step
from holdfast.core.registry import Definitions
from holdfast.durations import Duration
from holdfast.engine.records import AnswerBody, AskMessage
from holdfast.errors import DecodeError, RequestError, RequestRefusedError, UnknownNameError, in_words
from holdfast.ports import Message, Query

logger = logging.getLogger("holdfast")


@dataclass(slots=True)
class Asked:
    """A question that was put into a run's inbox, unless what the run has published answers it."""

    name: str
    definition: RequestDefinition[Any, Any] | None
    awaited: Awaited[bytes]
    published: bytes | None = None


@dataclass(slots=True)
class Asker:
    """Asks runs, and waits for their answers."""

    definitions: Definitions
    store: Query
    inbox: Inbox
    reader: RunReader
    waiter: Waiter
    starter: Starter

    def answer(self, asked: Asked, *, plain: bool = False) -> Any:
        """Wait for the answer of a run that was asked. A `plain` one is JSON data."""
        found = self.waiter.wait(asked.awaited) if asked.published is None else None
        return self._read(asked, found, plain)

    async def aanswer(self, asked: Asked, *, plain: bool = False) -> Any:
        found: bytes | None = None
        if asked.published is None:
            found = await self.waiter.wait_async(asked.awaited)
        return await run_blocking(lambda given_up: self._read(asked, found, plain))

    def start_and_ask(self, name: str, call: bytes, options: StartOptions, ask: Ask[Any]) -> tuple[Which, Asked]:
        """Start a run with a question in its inbox, in one commit; if the run is there already it is asked."""
        options = options.with_id_in_step(name)
        run_id = options.id or str(uuid.uuid4())
        definition, message = self._question(Which(run_id), ask.request, ask.payload, ask.id)
        limit = check_request(ask.request, ask.id, ask.timeout)
        run = self.starter.start(name, call, replace(options, id=run_id), [message])
        return run, self._awaiting(run, ask.request.name, message.request, limit, definition)

    def asked(
        self,
        run: Which,
        request: RequestDefinition[Any, Any] | str,
        payload: object,
        id: str | None,
        timeout: Duration | None,
    ) -> Asked:
        """Ask a run, unless what it has published answers at once. What it gives is waited for with `answer`."""
        limit = check_request(request, id, timeout)
        definition, message = self._question(run, request, payload, id)
        name = _name_of(request)
        row = self.reader.row(run)
        unknown = self._if_unknown(name, row.workflow) if definition is None else ""
        asked = self._awaiting(run, name, message.request, limit, definition, unknown)
        if definition is not None and definition.data is not None:
            asked.published = self.store.data(run.id).get(definition.data)
        if asked.published is None and self.store.answer(run.id, message.request) is None:
            refuse_without_history(row, "asked")
            self.inbox.post(message, f"request {name!r} can't be asked")
            if unknown:
                logger.warning("run %s may never answer: %s", run.id, unknown)
        return asked

    def _question(
        self, run: Which, request: RequestDefinition[Any, Any] | str, payload: object, id: str | None
    ) -> tuple[RequestDefinition[Any, Any] | None, Message]:
        name = _name_of(request)
        definition = self.definitions.request_models.find(name) if isinstance(request, str) else request
        encoded = Raw(encode_request(self.definitions.codec, definition, name, payload))
        step = current_step.get()
        # In a step the next attempt asks under the same id, and gets the same answer.
        id = id or (str(uuid.uuid4()) if step is None else step.next_child_id(name))
        body = msgspec.json.encode(AskMessage(name=name, request=id, payload=encoded))
        return definition, Message(run_id=run.id, run_no=run.no, kind="ask", body=body, request=id)

    def _if_unknown(self, name: str, workflow: str) -> str:
        """That nothing here defines such a request, although the code of the workflow is here."""
        try:
            self.definitions.find_workflow(workflow)
        except UnknownNameError:
            return ""
        known = ", ".join(self.definitions.request_models.names()) or "none"
        return f"no request {name!r} is defined in this program, so look at the name; known: {known}"

    def _awaiting(
        self,
        run: Which,
        name: str,
        id: str,
        limit: int | None,
        definition: RequestDefinition[Any, Any] | None,
        unknown: str = "",
    ) -> Asked:
        awaited = self.waiter.left(
            run, lambda: self.store.answer(run.id, id), f"an answer to request {name!r}",
            f"has not answered request {name!r}",
            unknown or f"ask again with id={id!r} to get the answer that it may still give", limit,
        )  # fmt: skip
        return Asked(name, definition, awaited)

    def _read(self, asked: Asked, found: bytes | None, plain: bool) -> Any:
        codec = self.definitions.codec
        answer = asked.published if found is None else self._answer_in(asked, found)
        assert answer is not None
        if plain:
            return codec.plain(answer)
        model = None if asked.definition is None else asked.definition.answer
        try:
            return codec.decode(answer, Any if model is None else model)
        except DecodeError:  # not what the definition says: give it as it is, as Python would
            return codec.decode(answer)

    def _answer_in(self, asked: Asked, found: bytes) -> bytes:
        """What the run has answered; raised if it has refused to."""
        body = msgspec.json.decode(found, type=AnswerBody)
        if bytes(body.error) != b"null":
            error = self.definitions.codec.decode_error(body.error)
            if isinstance(error, RequestError):
                raise error
            raise RequestRefusedError(
                f"run {asked.awaited.run.id} refused request {asked.name!r}: {in_words(error)}"
            ) from error
        return bytes(body.answer)


def _name_of(request: RequestDefinition[Any, Any] | str) -> str:
    return request if isinstance(request, str) else request.name
