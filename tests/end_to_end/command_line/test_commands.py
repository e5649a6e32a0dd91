"""Tests the command's answers to requests that make no sense or cannot be met."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import coprep
import pytest
from waiting import WAIT, until


def run(*arguments: object, code: int, **environment: str) -> str:
    """Runs a command and returns its output on both streams."""
    done = subprocess.run(
        ["coprep", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", ["a/b", "", "x" * 112, "ö"])
def test_serve_refuses_a_name_that_no_cache_can_have(name: str, socket_path: Path) -> None:
    assert "1 to 111 letters" in run("serve", "--cache-name", name, code=2)
    assert not socket_path.exists()


def test_a_wrong_variable_is_named_in_the_error(socket_path: Path) -> None:
    said = run("serve", code=2, COPREP_CACHE="abc")
    assert "COPREP_CACHE" in said and "'abc'" in said and "--cache <" not in said
    said = run("serve", "--cache", "abc", code=2, COPREP_CACHE="1G")
    assert "--cache <SIZE>" in said and "COPREP_CACHE" not in said
    said = run("serve", "--cache=abc", code=2, COPREP_CACHE="1G")
    assert "--cache <SIZE>" in said and "COPREP_CACHE" not in said
    assert "COPREP_COSTS" in run("serve", code=2, COPREP_COSTS="perhaps")


def test_a_job_is_told_which_variable_is_wrong(
    folder: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPREP_CACHE", "abc")
    with pytest.raises(coprep.CoprepError, match="COPREP_CACHE"):
        len(coprep.ImageFolder(folder).decode())


def test_switches_are_on_or_off(socket_path: Path) -> None:
    said = " ".join(run("serve", "--help", code=0).split())
    assert "--costs <COSTS>" in said and "possible values: on, off" in said
    assert "true" not in said
    assert "possible values: on, off" in run("serve", "--costs", "perhaps", code=2)


@pytest.mark.parametrize("value", ["off", "false", "0", "no"])
def test_a_switch_has_the_names_it_always_had(value: str, socket_path: Path) -> None:
    # The switch is accepted, and the next mistake is reported.
    assert "--cache" in run("serve", "--costs", value, "--cache", "plenty", code=2)


def test_more_cache_than_memory_is_warned_of(socket_path: Path) -> None:
    serve = subprocess.Popen(["coprep", "serve", "--cache", "10000G"], stderr=subprocess.PIPE, text=True)
    try:
        until(socket_path.exists, "the coordinator listens")
        findings = {f["check"]: f for f in json.loads(run("doctor", "--json", code=0))}
        assert findings["caches"]["level"] == "warning" and "9.8 TiB" in findings["caches"]["found"]
        run("stop", code=0)
        assert "caches may take 9.8 TiB" in serve.communicate(timeout=WAIT)[1]
    finally:
        serve.kill()
        serve.wait()
    findings = {f["check"]: f for f in json.loads(run("doctor", "--json", code=0, COPREP_CACHE="10000G"))}
    assert findings["caches"]["level"] == "warning"
    findings = {f["check"]: f for f in json.loads(run("doctor", "--json", code=1, COPREP_CACHE="abc"))}
    assert findings["caches"]["level"] == "failure"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_command_whose_reader_has_ended_ends_without_a_word(options: tuple[str, ...], socket_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        ["coprep", "doctor", *options], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=WAIT
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
