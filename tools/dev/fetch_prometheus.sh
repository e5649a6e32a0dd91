#!/usr/bin/env bash
# Fetches a Prometheus server into a folder, for the test of metrics. Where it cannot be had, its tests are skipped.
#
# Debian's package is unpacked and not installed, so that no service starts. Nothing needs root but a first list of
# packages.
set -euo pipefail
folder=$1

[ ! -x "$folder/usr/bin/prometheus" ] && ! command -v prometheus >/dev/null || exit 0
echo "fetching Prometheus for a test (20 MB; once)"
rm -rf "$folder"
mkdir -p "$folder/new"
cd "$folder/new"

fetch() {
    apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && mv usr .. && rm -r ../new
}

{ fetch || { apt-get update -qq && fetch; }; } >/dev/null 2>&1 \
    || echo "it cannot be had here: tests with a real Prometheus server will be skipped" >&2
