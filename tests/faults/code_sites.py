"""Reads from the code where the failpoints are, and where there should be some."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent


def functions(folder: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with where it is."""
    for file in sorted((SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def calls(node: ast.AST, *ends: str) -> list[ast.Call]:
    """Calls whose target ends like one of these: `store.commit` finds `self.store.commit(...)`."""
    found = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    return [call for call in found if any(("." + ast.unparse(call.func)).endswith("." + end) for end in ends)]


def hits(node: ast.AST) -> list[ast.Call]:
    return calls(node, "failpoints.hit")


def transactions() -> set[str]:
    """The names of all transactions: `self.write("commit")`."""
    found = set()
    for where, function in functions("stores"):
        for call in calls(function, "self.write"):
            (name,) = call.args
            assert isinstance(name, ast.Constant), f"{where}: a transaction is named by a plain text"
            found.add(str(name.value))
    return found


def failpoints() -> set[str]:
    """The names of all failpoints."""
    found = set()
    for where, function in functions():
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
    for where, function in functions():
        for call in calls(function, "execute", "commit"):
            words = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if "COMMIT" in " ".join(words).upper().split() or ast.unparse(call.func).endswith("raw.commit"):
                yield where, function, call


def uncovered(folder: str, *ends: str, after: bool) -> list[str]:
    """Calls without a failpoint before them, or one after, in the same function."""
    found = []
    for where, function in functions(folder):
        lines = [hit.lineno for hit in hits(function)]
        for call in calls(function, *ends):
            covered = any(line < call.lineno for line in lines)
            covered &= not after or any(line > call.lineno for line in lines)
            if not covered:
                found.append(f"{where}: {ast.unparse(call.func)} in line {call.lineno}")
    return found
