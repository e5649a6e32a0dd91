"""Kinds of state that a process holds for others: open files, connections, shared memory, locks, temporary files."""

from __future__ import annotations

import asyncio
import io
import mmap
import multiprocessing
import multiprocessing.managers
import multiprocessing.shared_memory
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from state.kind import FOLDERS, Kind, attempt

FILE: Any = None


class OpenFile(Kind):
    """an open file as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global FILE
        FILE = (FOLDERS[value] / "size.txt").open()

    def __getitem__(self, index: int) -> str:
        return "none" if FILE is None else os.pread(FILE.fileno(), 10, 0).decode()


PATHED: Any = None


class OpenFilePosition(Kind):
    """the position of an open file"""

    shares = False

    def set(self, value: int) -> None:
        global PATHED
        PATHED = io.BytesIO(b"0123456789")
        PATHED.seek(value)

    def __getitem__(self, index: int) -> str:
        return "none" if PATHED is None else str(PATHED.tell())


DESCRIPTOR = -1


class DescriptorNumber(Kind):
    """the number of an open descriptor as a global variable"""

    unseen = "a number does not tell that it is one of a descriptor"

    shares = False

    def set(self, value: int) -> None:
        global DESCRIPTOR
        # Jobs have the same number, whatever else is open.
        DESCRIPTOR = os.dup2(os.memfd_create("state"), 300)
        os.write(DESCRIPTOR, str(value).encode())

    def __getitem__(self, index: int) -> str:
        return "none" if DESCRIPTOR < 0 else os.pread(DESCRIPTOR, 10, 0).decode()


ENDS: Any = None


class OpenSocket(Kind):
    """a connected socket as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global ENDS
        ENDS = socket.socketpair()
        ENDS[0].send(str(value).encode())

    def __getitem__(self, index: int) -> str:
        return "none" if ENDS is None else ENDS[1].recv(10, socket.MSG_PEEK).decode()


DATABASE: Any = None


class Database(Kind):
    """a connection to an sqlite database in memory"""

    shares = False

    def set(self, value: int) -> None:
        global DATABASE
        DATABASE = sqlite3.connect(":memory:")
        DATABASE.execute("create table t (s int)")
        DATABASE.execute("insert into t values (?)", [value])

    def __getitem__(self, index: int) -> str:
        return "none" if DATABASE is None else str(DATABASE.execute("select s from t").fetchone()[0])


MAPPING: Any = None


class SharedMapping(Kind):
    """mmap.mmap(-1, n) as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global MAPPING
        MAPPING = mmap.mmap(-1, 16)
        MAPPING[0] = value

    def __getitem__(self, index: int) -> str:
        return "none" if MAPPING is None else str(MAPPING[0])


MAPPED: Any = None


class ReadOnlyMapping(Kind):
    """np.memmap of a file as a global variable"""

    def set(self, value: int) -> None:
        global MAPPED
        MAPPED = np.memmap(FOLDERS[value] / "size.txt", np.uint8, "r")

    def __getitem__(self, index: int) -> str:
        return "none" if MAPPED is None else str(MAPPED[0])


class H5File:
    """Stands for the file of a C library: it cannot be pickled, and its content cannot be seen from outside."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def __reduce__(self) -> Any:
        raise TypeError("h5py objects cannot be pickled")

    def read(self) -> str:
        return os.pread(self._file.fileno(), 10, 0).decode()


class HandleOfLibrary(Kind):
    """a handle of a C library as an attribute, which cannot be pickled"""

    alone = True
    shares = False

    def __init__(self) -> None:
        self.file = H5File(FOLDERS[3] / "size.txt")

    def set(self, value: int) -> None:
        self.file = H5File(FOLDERS[value] / "size.txt")

    def __getitem__(self, index: int) -> str:
        return self.file.read()


ARCHIVE: Any = None


class Archive(Kind):
    """an open zip file as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global ARCHIVE
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("size.txt", str(value))
        ARCHIVE = zipfile.ZipFile(content)

    def __getitem__(self, index: int) -> str:
        return "none" if ARCHIVE is None else ARCHIVE.read("size.txt").decode()


LOOP: Any = None


class EventLoop(Kind):
    """an event loop as a global variable, in which samples run coroutines"""

    shares = False

    def set(self, value: int) -> None:
        global LOOP
        LOOP = asyncio.new_event_loop()
        LOOP.slow_callback_duration = value

    async def get(self) -> float:
        duration: float = LOOP.slow_callback_duration
        return duration

    def __getitem__(self, index: int) -> str:
        return "none" if LOOP is None else str(LOOP.run_until_complete(self.get()))


# Objects of multiprocessing. As global variables they come by fork alone, and as attributes by every start method.

VALUE: Any = None


class SharedValue(Kind):
    """multiprocessing.Value as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global VALUE
        VALUE = multiprocessing.Value("i", value)

    def __getitem__(self, index: int) -> int:
        return 0 if VALUE is None else VALUE.value


class SharedValueAttribute(Kind):
    """multiprocessing.Value as an attribute"""

    shares = False

    def __init__(self) -> None:
        self.size = multiprocessing.Value("i", 0)

    def set(self, value: int) -> None:
        self.size.value = value

    def __getitem__(self, index: int) -> int:
        return self.size.value


class SharedArrayAttribute(Kind):
    """multiprocessing.Array as an attribute"""

    shares = False

    def __init__(self) -> None:
        self.sizes = multiprocessing.Array("i", 2)

    def set(self, value: int) -> None:
        self.sizes[1] = value

    def __getitem__(self, index: int) -> int:
        return sum(self.sizes)


class RawArrayAttribute(Kind):
    """multiprocessing.RawArray as an attribute"""

    shares = False

    def __init__(self) -> None:
        self.sizes = multiprocessing.RawArray("i", 2)

    def set(self, value: int) -> None:
        self.sizes[1] = value

    def __getitem__(self, index: int) -> int:
        return sum(self.sizes)


class LockAttribute(Kind):
    """multiprocessing.Lock as an attribute"""

    counts = False

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()

    def set(self, value: int) -> None:
        for _ in range(value):
            with self.lock:
                pass

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return index


class EventAttribute(Kind):
    """multiprocessing.Event as an attribute"""

    values = (True, False)
    shares = False

    def __init__(self) -> None:
        self.event = multiprocessing.Event()

    def set(self, value: bool) -> None:
        if value:
            self.event.set()

    def __getitem__(self, index: int) -> str:
        return str(self.event.is_set())


class QueueAttribute(Kind):
    """multiprocessing.Queue as an attribute"""

    values = (1, 2)
    shares = False

    def __init__(self) -> None:
        self.queue: Any = multiprocessing.Queue()

    def set(self, value: int) -> None:
        for _ in range(value):
            self.queue.put(value)

    def __getitem__(self, index: int) -> int:
        size: int = self.queue.qsize()
        return size


class ManagerDict(Kind):
    """Manager().dict() as an attribute"""

    shares = False

    def __init__(self) -> None:
        self.manager = multiprocessing.get_context("fork").Manager()
        self.table = self.manager.dict(size=0)

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table}

    def set(self, value: int) -> None:
        self.table["size"] = value

    def __getitem__(self, index: int) -> Any:
        return self.table["size"]

    def check(self) -> None:
        assert self.table["size"] > 0


class ManagerList(Kind):
    """Manager().list() as a global variable"""

    shares = False

    def set(self, value: int) -> None:
        global MANAGER, LIST
        MANAGER = multiprocessing.get_context("fork").Manager()
        LIST = MANAGER.list([value])

    def __getitem__(self, index: int) -> str:
        return "none" if LIST is None else str(LIST[0])


MANAGER: Any = None
LIST: Any = None


class SharedMemoryAttribute(Kind):
    """multiprocessing.shared_memory.SharedMemory as an attribute"""

    shares = False

    def __init__(self) -> None:
        self.memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)

    def set(self, value: int) -> None:
        self.memory.buf[0] = value

    def __getitem__(self, index: int) -> int:
        return self.memory.buf[0]

    def check(self) -> None:
        multiprocessing.shared_memory.SharedMemory(self.memory.name).close()
        self.memory.unlink()


class SharedMemoryByName(Kind):
    """SharedMemory(name), which samples attach"""

    shares = False

    def __init__(self) -> None:
        self.memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
        self.name = self.memory.name

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name}

    def set(self, value: int) -> None:
        self.memory.buf[0] = value

    def __getitem__(self, index: int) -> int:
        attached = multiprocessing.shared_memory.SharedMemory(self.name)
        size = attached.buf[0]
        attached.close()
        return size

    def check(self) -> None:
        multiprocessing.shared_memory.SharedMemory(self.name).close()
        self.memory.unlink()


class ThreadLockAttribute(Kind):
    """threading.Lock as an attribute, which cannot be pickled"""

    alone = True
    counts = False

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def set(self, value: int) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return index


# Folders that end with an object.

FOLDER: Any = None


class TemporaryDirectory(Kind):
    """tempfile.TemporaryDirectory as a global variable"""

    # Each job has a folder of its own.
    shares = False

    def set(self, value: int) -> None:
        global FOLDER
        FOLDER = tempfile.TemporaryDirectory()
        Path(FOLDER.name, "size.txt").write_text(str(value))

    def __getitem__(self, index: int) -> str:
        return "none" if FOLDER is None else Path(FOLDER.name, "size.txt").read_text()

    def check(self) -> None:
        assert Path(FOLDER.name, "size.txt").exists()
        FOLDER.cleanup()


class FolderRemovedAtEnd(Kind):
    """a dataset whose __del__ removes its folder"""

    shares = False

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        Path(self.folder, "size.txt").write_text("0")

    def __del__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def set(self, value: int) -> None:
        Path(self.folder, "size.txt").write_text(str(value))

    def __getitem__(self, index: int) -> str:
        return attempt(Path(self.folder, "size.txt").read_text)

    def check(self) -> None:
        assert Path(self.folder, "size.txt").exists()
        # The job ends without the ends of its objects.
        self.__del__()
