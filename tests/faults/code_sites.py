"""Reads from the code where the failpoints are, and where there should be some."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent


def functions(folder: str, *texts: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with where it is, in files that have one of the texts."""
    for file in sorted((SOURCE / folder).rglob("*.py")):
        text = file.read_text().lower()
        if not any(each.lower() in text for each in texts):
            continue
        for node in _functions_of(file):
            yield f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}", node


@functools.cache
def _functions_of(file: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]


@functools.cache
def _calls(node: ast.AST) -> list[tuple[str, ast.Call]]:
    """All calls in it, with a dot and the words of what is called."""
    return [("." + _words(call.func), call) for call in ast.walk(node) if isinstance(call, ast.Call)]


def _words(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return f"{_words(target.value)}.{target.attr}"
    return target.id if isinstance(target, ast.Name) else "()"


def calls(node: ast.AST, *ends: str) -> list[ast.Call]:
    """Calls whose target ends like one of these: `store.commit` finds `self.store.commit(...)`."""
    wanted = tuple("." + end for end in ends)
    return [call for words, call in _calls(node) if words.endswith(wanted)]


def hits(node: ast.AST) -> list[ast.Call]:
    return calls(node, "failpoints.hit")


def transactions() -> set[str]:
    """The names of all transactions: `self.database.write("commit")`."""
    found = set()
    ways = ("self.write", "self.database.write")
    for where, function in functions("stores", *ways):
        for call in calls(function, *ways) if function.name != "write" else ():
            (name,) = call.args
            assert isinstance(name, ast.Constant), f"{where}: a transaction is named by a plain text"
            found.add(str(name.value))
    return found


def failpoints() -> set[str]:
    """The names of all failpoints."""
    found = set()
    for where, function in functions("", "failpoints.hit"):
        for call in hits(function):
            (name,) = call.args
            if isinstance(name, ast.Constant):
                found.add(str(name.value))
            else:  # f"{name}.before_commit", for each transaction
                assert isinstance(name, ast.JoinedStr), where
                end = name.values[-1]
                assert isinstance(end, ast.Constant), where
                found |= {transaction + str(end.value) for transaction in transactions()}
    return found


def commits() -> Iterator[tuple[str, ast.FunctionDef, ast.Call]]:
    """Every COMMIT that is sent to a database."""
    for where, function in functions("", "COMMIT"):
        for call in calls(function, "execute", "commit"):
            words = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if "COMMIT" in " ".join(words).upper().split() or ast.unparse(call.func).endswith("raw.commit"):
                yield where, function, call


def uncovered(folder: str, *ends: str, after: bool) -> list[str]:
    """Calls without a failpoint before them, or one after, in the same function."""
    found = []
    for where, function in functions(folder, *ends):
        lines = [hit.lineno for hit in hits(function)]
        for call in calls(function, *ends):
            covered = any(line < call.lineno for line in lines)
            covered &= not after or any(line > call.lineno for line in lines)
            if not covered:
                found.append(f"{where}: {ast.unparse(call.func)} in line {call.lineno}")
    return found
