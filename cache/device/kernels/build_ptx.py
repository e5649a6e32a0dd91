"""Compiles convert.cu to convert.ptx with NVRTC, NVIDIA's compiler as a library. No GPU is needed.

usage: python build_ptx.py   in an environment that has the package `nvidia-cuda-nvrtc`; `make ptx` makes one

The result is text that every driver since CUDA 10 compiles for its GPU, from compute capability 7.5 on. NVRTC writes
the version of its own PTX, which older drivers refuse, though the code has nothing that is new. So an older version is
written over it. `--assemble PTXAS` has an assembler of NVIDIA's check that.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "convert.cu"
TARGET = FOLDER / "convert.ptx"
OLDEST_VERSION = "6.3"
"""The first version of PTX that knows compute capability 7.5."""
OPTIONS = (b"--gpu-architecture=compute_75", b"--std=c++17")
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def library() -> ctypes.CDLL:
    """Loads the newest NVRTC of this environment."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(file for folder in folders or () for file in Path(folder).glob("*/lib/libnvrtc.so.*"))
    if not found:
        raise SystemExit("this environment has no NVRTC: pip install nvidia-cuda-nvrtc")
    # NVRTC looks for its second library by its name alone, and finds it if it is loaded already.
    for part in found[-1].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(part))
    return ctypes.CDLL(str(found[-1]))


class Compiler:
    """A program of NVRTC."""

    def __init__(self, source: bytes, name: str) -> None:
        self.nvrtc = library()
        self.program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(self.program), source, name.encode(), 0, None, None)

    def call(self, function: str, *arguments: object) -> None:
        code = getattr(self.nvrtc, f"nvrtc{function}")(*arguments)
        if code != 0:
            raise SystemExit(f"nvrtc{function} failed: error {code}")

    def text(self, what: str) -> str:
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", self.program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", self.program, text)
        return text.value.decode()

    def compile(self) -> str:
        """Returns the PTX."""
        options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
        if self.nvrtc.nvrtcCompileProgram(self.program, len(OPTIONS), options) != 0:
            raise SystemExit(self.text("ProgramLog"))
        return self.text("PTX")


def stamped(ptx: str, source: bytes) -> str:
    """Returns the PTX with the oldest version that it can have, and with the checksum of its source."""
    ptx, count = re.subn(r"^\.version .*$", f".version {OLDEST_VERSION}", ptx, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"the PTX has {count} versions")
    return f"// Made of convert.cu (CRC-32 {zlib.crc32(source):08x}) by build_ptx.py.\n{ptx.strip()}\n"


def assemble(ptxas: str, ptx: Path) -> None:
    """Has an assembler compile the PTX for each architecture that it knows."""
    known = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
    for architecture in ARCHITECTURES:
        if f"'{architecture}'" not in known:
            print(f"{architecture}: this assembler does not know it")
            continue
        with tempfile.NamedTemporaryFile() as object_file:
            command = [ptxas, "-v", f"-arch={architecture}", str(ptx), "-o", object_file.name]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        used = re.findall(r"Used (\d+) registers", done.stderr)
        spills = set(re.findall(r"(\d+) bytes spill stores", done.stderr))
        print(f"{architecture}: registers {', '.join(used)}; bytes spilled {', '.join(sorted(spills))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assemble", metavar="PTXAS", help="check the result with this assembler")
    arguments = parser.parse_args()
    source = SOURCE.read_bytes()
    TARGET.write_text(stamped(Compiler(source, SOURCE.name).compile(), source))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    if arguments.assemble:
        assemble(arguments.assemble, TARGET)


if __name__ == "__main__":
    main()
