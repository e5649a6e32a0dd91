"""A program in a terminal of its own: reads its screen, and types keys.

As a program, it takes a picture. With jobs running, this makes the one of the guide:

    python tests/support/terminal.py docs/charts/top.svg --size 112x31 --keys jsss -- coprep top
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyte
import pyte.graphics

WAIT = 60.0
"""Seconds after which an expected text counts as missing."""


class Terminal:
    """Runs a command, in a locale of UTF-8 unless the environment says otherwise."""

    def __init__(self, command: Sequence[str], columns: int = 80, rows: int = 24, **env: str) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.master, self.slave = pty.openpty()
        self.set_size(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        # NO_COLOR would change the output.
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            # Only the leader of a session can take a controlling terminal.
            start_new_session=True,
            preexec_fn=self.control,
            env={**inherited, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **env},
        )

    def control(self) -> None:
        """Makes this the controlling terminal of the new process, so that the kernel tells it about a new size."""
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.set_size(columns, rows)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, seconds: float = 0.05) -> None:
        """Reads the program's output, and waits at most this long for the first of it."""
        while select.select([self.master], [], [], seconds)[0]:
            written = os.read(self.master, 65536)
            self.output += written
            self.stream.feed(written)
            seconds = 0

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.lines())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Reads until the condition holds for the screen."""
        end = time.monotonic() + WAIT
        while not condition():
            shown = "\n".join(self.lines())
            assert self.process.poll() is None, f"it ended before {what}:\n{shown}"
            assert time.monotonic() < end, f"it does not happen: {what}:\n{shown}"
            self.read()

    def ended(self) -> int:
        """Waits until the program has ended, and returns its exit code."""
        end = time.monotonic() + WAIT
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self.read()
        # The program may have written something before it ended.
        self.read(0)
        return self.process.returncode

    def is_as_it_was(self) -> bool:
        """Returns whether the program has left no trace in the terminal's modes."""
        left = self.output.rfind(b"\x1b[?1049l") > self.output.rfind(b"\x1b[?1049h")
        cursor = self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        return left and cursor and termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(WAIT)
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def terminal(command: Sequence[str], columns: int = 80, rows: int = 24, **env: str) -> Iterator[Terminal]:
    """Yields a terminal, and closes it afterwards, together with the program."""
    opened = Terminal(command, columns, rows, **env)
    try:
        yield opened
    finally:
        opened.close()


# --- a picture -----------------------------------------------------------------------------------------------

CELL, LINE, MARGIN = 8, 17, 12
INK, PAPER = "#d8dee9", "#1f2430"
COLOURS = dict(
    zip(pyte.graphics.FG_BG_256[1:7], ["#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2"], strict=True)
)
"""Red, green, yellow, blue, magenta and cyan, keyed by the emulator's values for them."""
Look = tuple[str, str, bool]


def look(cell: pyte.screens.Char) -> Look:
    """Returns ink, paper and whether the cell is bold."""
    ink, paper = COLOURS.get(cell.fg, INK), COLOURS.get(cell.bg, PAPER)
    return (paper, ink, cell.bold) if cell.reverse else (ink, paper, cell.bold)


def run_of_cells(x: int, y: int, text: str, how: Look) -> str:
    ink, paper, bold = how
    left, top, width = MARGIN + x * CELL, MARGIN + y * LINE, len(text) * CELL
    box = f'<rect x="{left}" y="{top}" width="{width}" height="{LINE}" fill="{paper}"/>' if paper != PAPER else ""
    if not text.strip():
        return box
    weight = ' font-weight="bold"' if bold else ""
    # The length keeps columns apart as in a terminal, in any font.
    position = f'x="{left}" y="{top + 13}" textLength="{width}" lengthAdjust="spacingAndGlyphs"'
    return f'{box}<text {position} fill="{ink}"{weight} xml:space="preserve">{html.escape(text)}</text>'


def svg(screen: pyte.Screen) -> str:
    """Returns the screen as a picture."""
    width, height = screen.columns * CELL + 2 * MARGIN, screen.lines * LINE + 2 * MARGIN
    font = 'font-family="\'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>',
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
    ]
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        for how, group in groupby(enumerate(cells), key=lambda cell: look(cell[1])):
            run = list(group)
            parts.append(run_of_cells(run[0][0], y, "".join(cell.data for _, cell in run), how))
    return "\n".join([part for part in parts if part] + ["</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="A picture of what a program shows in a terminal.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--size", default="110x32", help="columns x rows")
    parser.add_argument("--seconds", type=float, default=8.0, help="after which the picture is taken")
    parser.add_argument("--keys", default="", help="typed at the beginning")
    parser.add_argument("--end", default="q", help="typed at the end")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    columns, rows = map(int, args.size.split("x"))
    with terminal(args.command, columns, rows) as shown:
        end = time.monotonic() + args.seconds
        shown.type(args.keys)
        while time.monotonic() < end:
            shown.read()
        args.picture.write_text(svg(shown.screen))
        shown.type(args.end)
        shown.ended()


if __name__ == "__main__":
    main()
