#!/usr/bin/env bash
# Installs Python packages into an environment, by uv. pip takes ten times as long for PyTorch and what the examples use.
# uv asks the package index that pip is set to use.
#
# usage: install_packages.sh ENVIRONMENT PACKAGE_OR_OPTION...   options: those that uv and pip have in common
set -euo pipefail
environment=$1
shift
python=$environment/bin/python

# Prints a setting of pip: from its environment variable, or from its configuration files.
pip_setting() {
    local variable=PIP_${1^^}
    echo "${!variable:-$("$python" -m pip config get "global.${1//_/-}" 2>/dev/null || true)}"
}

# uv does not read pip's settings.
settings=(index_url:UV_DEFAULT_INDEX extra_index_url:UV_INDEX find_links:UV_FIND_LINKS cert:SSL_CERT_FILE)
for setting in "${settings[@]}"; do
    variable=${setting#*:}
    if [ -z "${!variable:-}" ]; then
        value=$(pip_setting "${setting%:*}")
        [ -z "$value" ] || export "$variable=$value"
    fi
done

# One installation at a time, since `make test` fills an environment by several targets side by side.
exec 9<"$environment"
flock 9
[ -x "$environment/bin/uv" ] || "$python" -m pip install --quiet --disable-pip-version-check uv
if ! "$environment/bin/uv" pip install --quiet --python "$python" "$@"; then
    echo "uv failed: trying pip"
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
fi
