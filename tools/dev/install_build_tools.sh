#!/usr/bin/env bash
# Installs the build tools that are missing, or says which. The argument is the Python interpreter to build with.
set -euo pipefail
python=${1:-python3}

command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain, 1.95 or newer" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed" >&2; exit 1; }

missing=()
# libjpeg-turbo is built from its sources, with cmake and nasm.
for tool in cmake nasm; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
command -v cc >/dev/null && command -v c++ >/dev/null || missing+=(g++)
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "missing: ${missing[*]}. Install with your package manager, for example: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
