"""`settings.HOLDFAST`: which app, on which store, defined in which modules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from holdfast.app import App

EXAMPLE = 'HOLDFAST = {"APP": "shop.flows:app"}'
KEYS = ("APP", "STORE", "MODULES")
MODULES = ("steps", "workflows")


@dataclass(frozen=True)
class Configuration:
    target: str
    store: str | None
    modules: Sequence[str]


def read_configuration() -> Configuration:
    given: Any = getattr(settings, "HOLDFAST", None)
    if not isinstance(given, dict):
        raise ImproperlyConfigured(
            f"settings.HOLDFAST is {given!r}; name the app that your steps are defined on: {EXAMPLE}"
        )
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise ImproperlyConfigured(f"settings.HOLDFAST has no key {unknown[0]!r}; known: {', '.join(KEYS)}")
    target, store, modules = given.get("APP"), given.get("STORE"), given.get("MODULES", MODULES)
    if not isinstance(target, str) or not all(target.partition(":")):
        raise ImproperlyConfigured(f'settings.HOLDFAST["APP"] is {target!r}; give "module:name", as in {EXAMPLE}')
    if store is not None and not isinstance(store, str | PathLike):
        raise ImproperlyConfigured(f'settings.HOLDFAST["STORE"] is {store!r}; give a path or a URL')
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise ImproperlyConfigured(
            f'settings.HOLDFAST["MODULES"] is {modules!r}; give a list of names to look for in each installed app'
        )
    return Configuration(target, None if store is None else os.fspath(store), tuple(modules))


def configured_app() -> App:
    """The app of this project, on the store that the settings name. HOLDFAST_STORE takes precedence over them."""
    configuration = read_configuration()
    module, _, name = configuration.target.partition(":")
    found = getattr(import_module(module), name, None)
    if not isinstance(found, App):
        raise ImproperlyConfigured(f'settings.HOLDFAST["APP"]: {module}.{name} is {found!r}, not an App')
    if configuration.store is not None and "HOLDFAST_STORE" not in os.environ:
        found.use_store(configuration.store)
    return found
