"""Values as they are typed in a shell: JSON where it reads as JSON, else text; key=value for keywords."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import re
from collections.abc import Callable
from typing import Any

import click

from holdfast.api.options import check_call, check_input
from holdfast.app import App
from holdfast.cli.failures import usage
from holdfast.codec import Codec
from holdfast.codec.paths import Misfit
from holdfast.durations import to_us
from holdfast.errors import ArgumentError
from holdfast.ports import DataSpan
from holdfast.views.filters import STATUS_WORDS, add_data_term, value_of
from holdfast.views.times import moment, read_local

STATUS = click.Choice([*STATUS_WORDS], case_sensitive=False)
"""What `--status` takes: the words that `status:` takes in a filter."""
_KEYWORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_OPTION = re.compile(r"--?[A-Za-z]")


class StoredNumber(click.types.IntParamType):
    """One that fits a column of every store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if not -(2**63) <= number < 2**63:
            self.fail(f"{value} is too large a number.", param, ctx)
        return number


class TakesValues(click.Command):
    """Takes `-1` for an argument, which click by itself would take for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = ctx.allow_extra_args = True  # what is left over is refused here, after options
        literal = len(args) - args.index("--") - 1 if "--" in args else 0  # the words after it, which are meant as text
        left = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return left
        words = [*self._given(ctx), *left]
        for word in words[: max(0, len(words) - literal)]:
            if _OPTION.match(word):
                raise self._no_such_option(ctx, word.partition("=")[0])
        if left:
            ctx.fail(f"{left[0]!r} is one argument too many")
        return left

    def _given(self, ctx: click.Context) -> list[str]:
        """The arguments that are none of an option, as they were typed."""
        given = [ctx.params[str(param.name)] for param in self.params if isinstance(param, click.Argument)]
        return [
            word for value in given for word in (value if isinstance(value, tuple) else (value,)) if word is not None
        ]

    def _no_such_option(self, ctx: click.Context, word: str) -> click.NoSuchOption:
        known = [name for param in self.params if isinstance(param, click.Option) for name in param.opts]
        said = f"No such option {word!r}; write -- before it to mean the text."
        return click.NoSuchOption(word, said, possibilities=difflib.get_close_matches(word, known), ctx=ctx)


def statuses_of(words: tuple[str, ...]) -> list[str]:
    """What is meant by the words of `--status`."""
    return [str(STATUS_WORDS[word]) for word in words]


def data_terms(codec: Codec, terms: tuple[str, ...]) -> tuple[dict[str, str], list[DataSpan]]:
    """What `--data KEY=VALUE` and its like ask of runs: values that are equal, and those between two others."""
    equal: dict[str, str] = {}
    spans: list[DataSpan] = []
    for term in terms:
        if not add_data_term(term, codec.encode, equal, spans):
            usage(f"--data {term!r}: give KEY=VALUE")
    return equal, spans


def moment_of(option: str, text: str, now: int, tz: dt.tzinfo | None = None) -> dt.datetime:
    """`2h` ago, or a date and time, without a zone in that one, else in the local one."""
    try:
        try:
            ago = to_us(text)
        except ValueError:
            return read_local(text, tz)
        return moment(now - ago).astimezone(tz)
    except (ValueError, OverflowError):
        usage(f"{option} {text!r}: give a day or a time such as 2026-01-31T12:00, or how long ago: 30m, 2h, 3d")


def split(words: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Positional and keyword arguments, both as they were typed."""
    args: list[str] = []
    kwargs: dict[str, str] = {}
    for word in words:
        found = _KEYWORD.fullmatch(word)
        if found is None or not isinstance(value_of(word), str):
            if kwargs:
                usage(f"{word!r} comes after a key=value; put arguments without a name first")
            args.append(word)
        elif found[1] in kwargs:
            usage(f"{found[1]}= is given twice")
        else:
            kwargs[found[1]] = found[2]
    return args, kwargs


def encoded_call(app: App, name: str, words: tuple[str, ...], args_json: str | None) -> bytes:
    """The recorded form of a call, checked against the function's signature and annotations."""
    definition = app.definitions.find_startable(name)
    if args_json is not None:
        if words:
            usage("give the arguments one by one or with --args-json, not both")
        args, kwargs = _from_json(args_json)
    else:
        words_, named = split(words)
        args = [_fitting(definition.hints.positional(i), word) for i, word in enumerate(words_)]
        kwargs = {key: _fitting(definition.hints.named(key), word) for key, word in named.items()}
    check_call(name, definition, tuple(args), kwargs)
    args = [
        _converted(definition, definition.hints.position(i), definition.hints.positional(i), v)
        for i, v in enumerate(args)
    ]
    kwargs = {key: _converted(definition, key, definition.hints.named(key), v) for key, v in kwargs.items()}
    check_input(definition, args, kwargs)
    return app.codec.encode_call(tuple(args), kwargs, f"the arguments of {name!r}", definition.hints)


def _from_json(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        usage(f"--args-json isn't JSON: {error}")
    if isinstance(found, list):
        return found, {}
    if isinstance(found, dict):
        return [], found
    usage("--args-json: give a list of arguments, or an object of keyword arguments")


def _fitting(convert: Callable[[Any], Any], word: str) -> Any:
    """What the word means to a parameter: `17` is a number, but text to a parameter that takes text."""
    value = value_of(word)
    try:
        convert(value)
    except Misfit:
        try:
            convert(word)
        except Misfit:
            return value
        return word
    return value


def _converted(definition: Any, name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except Misfit as misfit:
        what = f"{definition.name}{definition.signature}"
        raise ArgumentError(f"{what}: {misfit.within(name).text('arguments', root='')}") from None
