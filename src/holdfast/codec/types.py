"""Which classes may be recorded and rebuilt, and under which names.

A class gets in by `register`, by `learn` when a function's annotations reach it, or because the module of such a
function knows it by its name, when a value of it is recorded or read for the first time. Nothing is ever imported because
recorded data names it.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.codec.annotations import Scope, enclosing_scope, parts_of, resolve
from holdfast.codec.paths import Misfit, name_of
from holdfast.codec.shapes import Shape, describe, is_pydantic
from holdfast.errors import DefinitionError, DuplicateNameError


class _Unresolved(NamedTuple):
    """Annotations of one function that can't be evaluated, by parameter. Those `without` which it is recorded don't count."""

    texts: Mapping[str, str]
    without: Collection[str]


class TypeRegistry:
    """The classes of one app. A tag is the class's bare name, so that it means the same class whether its
    module was run as a script or imported; where two classes share the name, both are written qualified."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self.shapes: dict[type, Shape] = {}
        self._reserved = frozenset(reserved)
        self._owners: dict[str, type] = {}  # names that are one class's alone: given by hand, or qualified
        self._claimants: dict[str, list[type]] = {}  # bare names, and every class that goes by one
        self._hints: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._unresolved: dict[Callable[..., Any], _Unresolved] = {}
        self._scopes: dict[int, Scope] = {}  # names that the code of the app can use
        self._looked_for: set[str] = set()

    def register(
        self,
        cls: type,
        name: str | None = None,
        *,
        aliases: Sequence[str] = (),
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        """Let `cls` be recorded as `name`; `aliases` are names it was recorded under before.

        `encode` turns an instance into something recordable and `decode` turns that back; both or neither.
        """
        if (encode is None) != (decode is None):
            raise DefinitionError(f"{name_of(cls)} needs both encode= and decode=, or neither")
        by_hand = encode is not None and decode is not None
        shape = Shape(cls, encode, decode, by_hand=True) if encode and decode else describe(cls)
        if shape is None:
            raise DefinitionError(f"can't see what {name_of(cls)} consists of; give encode= and decode=")
        claims = [*aliases] if name is None else [name, *aliases]
        for claim in claims:
            if claim in self._reserved or self._owners.get(claim, cls) is not cls:
                raise DuplicateNameError(f"the name {claim!r} is taken; choose another for {name_of(cls)}")
        shape.name = name
        self._owners |= dict.fromkeys(claims, cls)
        self._add(shape)
        for claim in claims:
            self._retag(claim)
        if not by_hand:
            self._explore_fields(cls, {}, set())

    def learn(self, fn: Callable[..., Any], without: Collection[str] = ()) -> None:
        """Let every class be recorded that `fn`'s annotations reach, through generics and fields; those of the
        parameters `without` which it is recorded are no part of that."""
        fn = inspect.unwrap(fn)
        scope = enclosing_scope(fn)
        self._see(fn, scope)
        self._hints[fn], unresolved = resolve(fn, scope)
        for name, hint in self._hints[fn].items():
            if name not in without:
                self._explore(hint, scope, set())
        if unresolved:
            self._unresolved[fn] = _Unresolved(unresolved, without)

    def _see(self, fn: Callable[..., Any], scope: Scope) -> None:
        """What the code around `fn` knows by name."""
        names = getattr(fn, "__globals__", None)
        if names is not None and id(names) not in self._scopes:
            self._scopes[id(names)] = names
            self._looked_for.clear()
        classes = {name: value for name, value in scope.items() if isinstance(value, type)}
        if classes:
            self._scopes[-len(self._scopes) - 1] = classes
            self._looked_for.clear()

    def _look_for(self, name: str) -> None:
        """Let classes be recorded that the app's code knows by that name. All of them, so that they can be told apart."""
        if name in self._looked_for:
            return
        self._looked_for.add(name)
        for scope in list(self._scopes.values()):
            places = [scope, *(vars(value) for value in list(scope.values()) if isinstance(value, ModuleType))]
            for place in places:
                found = place.get(name)
                if isinstance(found, type) and found.__name__ == name:
                    self._explore(found, scope, set())

    def learn_hint(self, hint: Any) -> None:
        """The same for one annotation."""
        self._explore(hint, {}, set())

    def hints(self, owner: Any) -> dict[str, Any]:
        """The resolved annotations of a function or a class; those that can't be resolved are left out."""
        if owner in self._unresolved:
            self._learn_unresolved()
        if owner not in self._hints:
            self._hints[owner] = resolve(owner, {})[0]
        return self._hints[owner]

    def shape_of(self, cls: type) -> Shape | None:
        if cls not in self.shapes:
            self._learn_unresolved()
        if cls not in self.shapes:
            self._look_for(cls.__name__)
        return self.shapes.get(cls)

    def shape_named(self, tag: str) -> Shape:
        if tag not in self._owners and tag not in self._claimants:
            self._learn_unresolved()
        if tag not in self._owners and tag not in self._claimants:
            self._look_for(tag.rpartition(".")[2])
        claimants = self._claimants.get(tag, [])
        if tag in self._owners:
            return self.shapes[self._owners[tag]]
        if len(claimants) == 1:
            return self.shapes[claimants[0]]
        if claimants:
            names = " or ".join(map(name_of, claimants))
            raise Misfit(f"{tag!r} may be {names}; say whose it is with register(Cls, aliases=[{tag!r}])")
        raise Misfit(
            f"no class is known as {tag!r}; annotate a parameter with it, or app.codec.types.register(Cls), "
            f"and if it was renamed, register(NewName, aliases=[{tag!r}])"
        )

    def _learn_unresolved(self) -> None:
        # A class annotated before it was defined exists by the time a value of it turns up.
        pending, self._unresolved = self._unresolved, {}
        for fn, unresolved in pending.items():
            self.learn(fn, unresolved.without)

    def unresolved(self, name: str = "") -> list[str]:
        """Annotations that can't be evaluated by now, in words; with a `name`, those that have it in them."""
        self._learn_unresolved()
        return [
            f"the annotation {text!r} of {_place(parameter)} of {fn.__qualname__} can't be evaluated"
            for fn, unresolved in self._unresolved.items()
            for parameter, text in unresolved.texts.items()
            if parameter not in unresolved.without and (not name or name in re.findall(r"\w+", text))
        ]

    def _add(self, shape: Shape) -> None:
        cls, qualified = shape.cls, qualified_name(shape.cls)
        # The same qualified name again is the same class redefined: a reload, a notebook cell run twice.
        former = self._owners.get(qualified)
        self.shapes[cls] = shape
        self._owners[qualified] = cls
        others = [c for c in self._claimants.get(cls.__name__, ()) if c is not cls and c is not former]
        self._claimants[cls.__name__] = [*others, cls]
        self._retag(cls.__name__)

    def _retag(self, bare: str) -> None:
        claimants = self._claimants.get(bare, [])
        owner = self._owners.get(bare, claimants[0] if len(claimants) == 1 else None)
        for cls in claimants:
            free = owner is cls and bare not in self._reserved
            self.shapes[cls].tag = self.shapes[cls].name or (bare if free else qualified_name(cls))

    def _explore(self, hint: Any, scope: Scope, seen: set[int]) -> None:
        if hint is None or id(hint) in seen:
            return
        seen.add(id(hint))
        if isinstance(hint, type) and hint.__module__ != "builtins":
            shape = None if hint in self.shapes else describe(hint)
            if shape is not None:
                self._add(shape)
            if shape is not None or typing.is_typeddict(hint):
                self._explore_fields(hint, scope, seen)
        for part in parts_of(hint):
            self._explore(part, scope, seen)

    def _explore_fields(self, cls: Any, scope: Scope, seen: set[int]) -> None:
        if is_pydantic(cls):
            self._hints[cls] = {name: field.annotation for name, field in cls.model_fields.items()}
        else:
            self._hints[cls], _ = resolve(cls, scope if "<locals>" in cls.__qualname__ else {})
        for hint in self._hints[cls].values():
            self._explore(hint, scope, seen)


def _place(parameter: str) -> str:
    return "the result" if parameter == "return" else f"parameter {parameter!r}"


def home_of(module: str) -> str:
    """The name by which others import a module: a script knows itself only as `__main__`."""
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".py") if file else module


def qualified_name(cls: type) -> str:
    return f"{home_of(cls.__module__)}.{cls.__qualname__}"
