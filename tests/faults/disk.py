"""What a disk would hold after a power cut, and disks that fail: both by a shim that is preloaded (shim.c)."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct("<cB2xIQ")
SUFFIXES = {1: "", 2: "-wal", 3: "-journal"}
SECTOR = 512


def build(folder: Path) -> Path:
    """The shim, or a reason why there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc) here: disks that lose power or fail can't be simulated")
    if os.uname().sysname != "Linux":
        raise FileNotFoundError("the shim for disks that fail is written for Linux")
    built = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", built, source, "-ldl"], check=True)
    return built


def acknowledge(log: str, line: bytes) -> None:
    """Put a line between the records of the shim: whatever was said to somebody is durable from here on."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, HEAD.pack(b"a", 0, len(line), 0) + line)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Record:
    op: str
    file: int
    offset: int
    data: bytes


def read(log: Path) -> Iterator[Record]:
    with log.open("rb") as file:
        while head := file.read(HEAD.size):
            op, number, length, offset = HEAD.unpack(head)
            yield Record(op.decode(), number, offset, file.read(length) if op in (b"w", b"a") else b"")


@dataclass
class File:
    """`durable` is what was synced, `pending` what was not yet. A removal is not durable by itself."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)
    is_synced: bool = False
    syncing: dict[int, list[Record]] = field(default_factory=dict)  # what each sync under way covers, by thread
    removed: bytes | None = None  # what was there before it was removed

    def take(self, record: Record) -> None:
        if record.op == "b":
            self.syncing[record.offset] = list(self.pending)
        elif record.op == "s" and record.offset in self.syncing:  # else it began on a file that was removed since
            covered = {id(each) for each in self.syncing.pop(record.offset)}
            for each in [each for each in self.pending if id(each) in covered]:
                apply(self.durable, each)
            self.pending = [each for each in self.pending if id(each) not in covered]
            self.is_synced, self.removed = True, None
        elif record.op in ("w", "t"):
            self.pending.append(record)

    def content(self, chance: random.Random, torn: bool) -> bytes | None:
        """What may be found after a power cut; None for no file. Torn: any sectors of what was not synced are there."""
        if not self.is_synced and not (torn and self.pending and chance.random() < 0.5):
            return self.removed if self.removed is not None and chance.random() < 0.5 else None
        found = bytearray(self.durable)
        if torn:
            share = chance.random()
            for record in self.pending:
                for piece in sectors(record):
                    if chance.random() < share:
                        apply(found, piece)
        return bytes(found)


def sectors(record: Record) -> Iterator[Record]:
    if record.op != "w":
        yield record
        return
    at = 0
    while at < len(record.data):
        size = SECTOR - (record.offset + at) % SECTOR
        yield Record("w", record.file, record.offset + at, record.data[at : at + size])
        at += size


def apply(content: bytearray, record: Record) -> None:
    if record.op == "t":
        del content[record.offset :]
        return
    if len(content) < record.offset:
        content.extend(bytes(record.offset - len(content)))
    content[record.offset : record.offset + len(record.data)] = record.data


class Disk:
    """The files of one store, as the log tells them."""

    def __init__(self) -> None:
        self.files = {number: File() for number in SUFFIXES}
        self.acknowledged: list[bytes] = []

    def take(self, record: Record) -> None:
        if record.op == "a":
            self.acknowledged.append(record.data)
        elif record.op == "u":
            gone = self.files[record.file]
            # SQLite syncs the folder when it removes a journal, for that is the commit; not so for a WAL that was emptied.
            left = bytes(gone.durable) if gone.is_synced and SUFFIXES[record.file] == "-wal" else None
            self.files[record.file] = File(removed=left)
        else:
            self.files[record.file].take(record)

    def cut(self, path: Path, chance: random.Random, torn: bool) -> None:
        """Write what is left of the store after a power cut at this moment."""
        for number, suffix in SUFFIXES.items():
            content = self.files[number].content(chance, torn)
            if content is not None:
                Path(f"{path}{suffix}").write_bytes(content)
