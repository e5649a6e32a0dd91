#!/usr/bin/env bash
# Installs Chromium, in which tests look at the page of a report. Without a browser those tests are skipped.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    ! "$name" --version >/dev/null 2>&1 || exit 0
done

install() {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium (about 0.35 GB; once)"
    install || echo "chromium cannot be installed: tests that need it are skipped"
else
    echo "chromium is missing: tests that need it are skipped. To have them: sudo apt-get install chromium"
fi
