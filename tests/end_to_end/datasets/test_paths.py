"""Tests that jobs share a folder under any of its names, and that a warmed cache is used, or a message says why not."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coprep
import pytest
from batches import ids
from coordinators import stream
from jobs import Start
from photos import make_folder
from user_jobs import HERE
from waiting import WAIT

N = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "mini", N)


@pytest.fixture
def spellings(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of one folder, as scripts write them."""
    monkeypatch.chdir(data.parent)
    link = tmp_path / "link"
    link.symlink_to(data)
    return ["mini", "mini/", "./mini", f"../{data.parent.name}/mini", str(data), f"{data}/class0/..", str(link)]


def run(*arguments: object, code: int = 0) -> str:
    """Runs a command and returns its output on both streams."""
    done = subprocess.run(
        ["coprep", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def random_crop(pipeline: coprep.Pipeline) -> coprep.Pipeline:
    return pipeline.random_resized_crop(32)


def loader(pipeline: coprep.Pipeline, **options: Any) -> coprep.DataLoader:
    return coprep.DataLoader(pipeline, 8, True, framework="numpy", with_index=True, **options)


def first_epoch(pipeline: coprep.Pipeline, **options: Any) -> dict[str, Any]:
    """Returns the status of the only stream after a job's first epoch, for which all samples were looked up."""
    with loader(pipeline, **options) as train:
        assert sorted(ids(train)) == list(range(N))
        return stream()


def one_cache() -> dict[str, Any]:
    caches: list[dict[str, Any]] = coprep.status()["caches"]
    assert len(caches) == 1, caches
    return caches[0]


# The spelling of a path.


def test_files_are_read_whatever_the_bytes_of_their_names(data: Path, tmp_path: Path, socket_path: Path) -> None:
    names = [b"\xff\xe4.jpg", "ä.jpg".encode(), b"a.jpg"]
    paths = [os.path.join(os.fsencode(tmp_path), name) for name in names]
    for path, image in zip(paths, sorted(data.rglob("*.jpg")), strict=False):
        os.symlink(image, path)
    texts = [os.fsdecode(path) for path in paths]
    pipelines = [random_crop(coprep.Files(named).decode()) for named in (paths, texts, [Path(text) for text in texts])]
    pipelines.append(pickle.loads(pickle.dumps(pipelines[0])))
    assert all(pipeline == pipelines[0] for pipeline in pipelines)
    with loader(pipelines[0]) as train:
        assert sorted(ids(train)) == [0, 1, 2]
    os.unlink(paths[0])
    with pytest.raises(coprep.SampleError, match=r"\ufffd\ufffd\.jpg"), loader(pipelines[0]) as train:
        ids(train)


def test_however_a_folder_is_named_its_jobs_share(spellings: list[str], socket_path: Path) -> None:
    pipelines = [random_crop(coprep.ImageFolder(name).decode()) for name in spellings]
    assert {pipeline.root for pipeline in pipelines} == {os.path.realpath(spellings[0])}
    loaders = [loader(pipeline) for pipeline in pipelines]
    for train in loaders:
        assert sorted(ids(train)) == list(range(N))
    assert len(stream()["jobs"]) == len(spellings)
    one_cache()
    for train in loaders:
        train.close()


def test_jobs_in_other_folders_share_what_is_named_relatively(data: Path, socket_path: Path, start: Start) -> None:
    code = """
    import os, sys, coprep
    os.chdir(sys.argv[1])
    train = coprep.DataLoader(coprep.ImageFolder(sys.argv[2]).decode().random_resized_crop(32), 8, framework="numpy")
    print(len(train), flush=True)
    sys.stdin.readline()
    """
    jobs = [start(code, data.parent, "mini/"), start(code, data / "class0", "..")]
    assert [job.line() for job in jobs] == ["3", "3"]
    assert len(stream()["jobs"]) == 2


def test_however_files_are_named_their_jobs_share(spellings: list[str], socket_path: Path) -> None:
    names = sorted(path.name for path in Path("mini/class0").iterdir())
    lists = [[f"{folder}/class0/{name}" for name in names] for folder in spellings]
    loaders = [loader(random_crop(coprep.Files(paths).decode())) for paths in lists]
    for train in loaders:
        assert len(train) == 1
    assert len(stream()["jobs"]) == len(spellings)
    for train in loaders:
        train.close()


def test_a_missing_folder_is_named_in_the_error(socket_path: Path, tmp_path: Path) -> None:
    missing = coprep.ImageFolder(tmp_path / "typo" / "..")
    with pytest.raises(FileNotFoundError, match="typo"):
        len(missing)
    assert coprep.ImageFolder(tmp_path / "later/").root == str(tmp_path / "later")


def test_status_says_which_folders_keep_streams_apart(data: Path, tmp_path: Path, socket_path: Path) -> None:
    other = make_folder(tmp_path / "copy", N)
    with (
        loader(random_crop(coprep.ImageFolder(data).decode())) as a,
        loader(random_crop(coprep.ImageFolder(other).decode())) as b,
    ):
        assert len(a) == len(b) == 3
        text = " ".join(run("status").split())
    assert f"folder {data} and {other}" in text and f"folder {other} and {data}" in text


def test_status_says_which_arguments_keep_streams_apart(data: Path, socket_path: Path) -> None:
    decoded = coprep.ImageFolder(data).decode()
    with loader(decoded.random_resized_crop(32)) as a, loader(decoded.random_resized_crop(32, scale=(0.5, 1.0))) as b:
        assert len(a) == len(b) == 3
        first, second = (s["differs"] for s in coprep.status()["streams"])
        pipelines = {s["pipeline"] for s in coprep.status()["streams"]}
    assert first == ["stream 2: operators random_resized_crop(32) and random_resized_crop(32, scale=(0.5, 1.0))"]
    assert len(second) == 1 and len(pipelines) == 2


def test_status_says_which_files_keep_streams_apart(data: Path, socket_path: Path) -> None:
    paths = sorted(data.rglob("*.jpg"))
    forwards, backwards = (random_crop(coprep.Files(files).decode()) for files in (paths, paths[::-1]))
    with loader(forwards) as a, loader(backwards) as b:
        assert len(a) == len(b) == 3
        (differs,) = coprep.status()["streams"][0]["differs"]
    assert differs == f"stream 2: path of sample 0, {paths[0]} and {paths[-1]}"


# The use of a warmed cache.


@pytest.mark.parametrize("form", [None, "decoded", "encoded", "auto"])
def test_a_job_that_names_no_form_takes_what_is_warm(form: str | None, spellings: list[str], socket_path: Path) -> None:
    link = spellings[-1]
    said = run("warm", link, *(["--form", form] if form else []))
    reserved = one_cache()["capacity"]
    assert f'ImageFolder("{os.path.realpath(link)}")' in said and f'cache="{form or "auto"}"' in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        used = first_epoch(random_crop(coprep.ImageFolder(spellings[1]).decode()))
    assert used["totals"]["fetched"] == 0 and used["notes"] == []
    cache = one_cache()
    assert cache["warmed"] and cache["hits"] >= N and cache["misses"] == 0
    assert cache["capacity"] == reserved


@pytest.mark.parametrize(
    ("options", "operators"),
    [
        (["--resize", 100], lambda p: p.decode().resize(100)),
        (["--resize", 100, "--interpolation", "bicubic"], lambda p: p.decode().resize(100, interpolation="bicubic")),
        (["--center-crop", 90], lambda p: p.decode().center_crop(90)),
        (["--exif"], lambda p: p.decode(apply_exif_orientation=True)),
        ([], lambda p: p.decode(scaled=False)),
    ],
)
def test_flags_warm_what_such_operators_need(
    options: list[object], operators: Callable[[coprep.Pipeline], coprep.Pipeline], data: Path, socket_path: Path
) -> None:
    run("warm", data, "--form", "decoded", *options)
    used = first_epoch(random_crop(operators(coprep.ImageFolder(data))))
    assert used["totals"]["fetched"] == 0
    assert one_cache()["misses"] == 0


def test_a_job_is_told_why_it_does_not_use_what_is_warm(data: Path, socket_path: Path) -> None:
    run("warm", data)
    with (
        pytest.warns(coprep.CacheWarning, match=r"after decode, and this pipeline has decode > resize\(64\)"),
        loader(random_crop(coprep.ImageFolder(data).decode().resize(64))) as train,
    ):
        ids(train)
        (note,) = stream()["notes"]
        assert note in " ".join(run("status").split())
    assert [cache["pipeline"] for cache in coprep.status()["caches"]] == ["decode", "decode > resize(64)"]


def test_a_job_that_names_another_form_is_told_so(data: Path, socket_path: Path) -> None:
    run("warm", data, "--form", "decoded")
    decoded = random_crop(coprep.ImageFolder(data).decode())
    with pytest.warns(coprep.CacheWarning, match='its form is decoded.*leave cache= out, or give cache="decoded"'):
        first_epoch(decoded, cache="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_epoch(decoded, cache="off")
        first_epoch(decoded, cache="decoded")


def test_jobs_that_name_no_form_share_though_a_cache_was_warmed_between_them(data: Path, socket_path: Path) -> None:
    pipeline = random_crop(coprep.ImageFolder(data).decode())
    with loader(pipeline) as first, loader(pipeline) as second:
        assert len(first) == 3
        run("warm", data, "--form", "decoded")
        assert len(second) == 3
        shared = stream()
        assert len(shared["jobs"]) == 2
        assert "when this stream's jobs had come" in shared["notes"][0]
    assert first_epoch(pipeline)["cache"] == "decoded"


# Warming from a script.

SCRIPT = """
import sys, coprep
from user_datasets import Numbers, Scaled
class Own(Numbers):
    pass
if __name__ == "__main__":
    size = int(sys.argv[1])
    images = coprep.ImageFolder(sys.argv[2]).decode(scaled=False).resize(size, interpolation="bicubic")
    first = coprep.DataLoader(images.random_resized_crop(32), 8, shuffle=True, framework="numpy", with_index=True)
    options = dict(shuffle=True, transform=Scaled(), framework="numpy", with_index=True, num_workers=1)
    second = coprep.DataLoader(Own(24), 8, cohort="together", cohort_size=1, **options)
    third = coprep.DataLoader(Numbers(24), 8, framework="numpy")
    print("begins", flush=True)
    for loader in first, second:
        seen = sorted(int(i) for batch in loader for i in batch[-1])
        assert seen == list(range(24))
    print("trained", flush=True)
    print(len(coprep.status()["streams"]), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", HERE)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def from_script(*arguments: object, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Returns the events of a warm-up, and the text that the script printed."""
    command = ["coprep", "warm", "--json", "--python", sys.executable, "--from", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_script_says_what_is_to_be_warmed(script: Path, data: Path, socket_path: Path) -> None:
    events, said = from_script(script, "--", 60, data)
    assert "begins" in said and "trained" not in said
    native, own, plain = (event for event in events if "progress" not in event)
    assert native["done"]["cached"] == own["done"]["cached"] == N
    assert "transform=" in plain["skipped"]
    warmed = coprep.status()["caches"]
    assert [cache["warmed"] for cache in warmed] == [True, True]
    assert warmed[0]["pipeline"] == 'decode > resize(60, interpolation="bicubic")'
    job = subprocess.Popen(
        [sys.executable, "-W", "error::coprep.CacheWarning", script, "60", data],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert [job.stdout.readline().strip() for _ in range(3)] == ["begins", "trained", "2"]
    status = coprep.status()
    job.communicate(timeout=WAIT)
    assert len(status["caches"]) == 2
    assert all(s["totals"]["fetched"] == 0 for s in status["streams"])
    for before, after in zip(warmed, status["caches"], strict=True):
        assert after["capacity"] == before["capacity"] and after["entries"] == N
        assert after["hits"] - before["hits"] >= N and after["misses"] == before["misses"]


def test_a_script_may_ask_a_loader_something_before_it_iterates(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader is attached then, as a member of a cohort that waits for another member. The warm-up does not wait."""
    monkeypatch.setenv("PYTHONPATH", HERE)
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import coprep
        from user_datasets import Numbers, Scaled
        if __name__ == "__main__":
            pair = dict(cohort="pair", cohort_size=2, num_workers=1, framework="numpy")
            loader = coprep.DataLoader(Numbers(24), 8, shuffle=True, transform=Scaled(), **pair)
            print(loader.seed)
            next(iter(loader))
        """)
    )
    events, _ = from_script(script)
    assert events[-1]["done"]["cached"] == N


def test_a_warm_up_leaves_iterable_datasets_out_and_says_why(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", HERE)
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import warnings
        import coprep
        from user_iterables import Items, double
        if __name__ == "__main__":
            warnings.simplefilter("ignore", coprep.UnsharedWarning)
            alone = coprep.DataLoader(Items([8]), 4)
            shared = coprep.DataLoader(Items([8]), 4, transform=double, cohort="pair", cohort_size=2)
            next(iter(shared))
        """)
    )
    alone, shared = from_script(script, code=1)[0]
    assert "its dataset is an IterableDataset" in alone["skipped"] and "sampler" not in alone["skipped"]
    assert "nothing of it is cached" in shared["skipped"]


def test_a_script_may_end_without_iterating(data: Path, socket_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, coprep
        train = coprep.DataLoader(coprep.ImageFolder({str(data)!r}).decode().random_resized_crop(32), 8)
        sys.exit(0)
        """)
    )
    events, _ = from_script(script)
    assert events[-1]["done"]["cached"] == N
    script.write_text("import coprep")
    assert "no coprep.DataLoader" in from_script(script, code=1)[1]
    script.write_text("raise ValueError('broken')")
    assert "broken" in from_script(script, code=1)[1]


@pytest.mark.parametrize("name", ["pipeline", "loader", "make_pipeline", "dataset"])
def test_an_import_string_says_what_is_to_be_warmed(
    name: str, data: Path, socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "research.py").write_text(
        textwrap.dedent(f"""
        import coprep
        pipeline = coprep.ImageFolder({str(data)!r}).decode().resize((50, 50))
        loader = coprep.DataLoader(pipeline.random_resized_crop(32), 8)
        def make_pipeline():
            return pipeline.random_horizontal_flip()
        dataset = [1, 2, 3]
        """)
    )
    if name == "dataset":
        events, said = from_script(f"research:{name}", code=1)
        assert "transform=" in events[0]["skipped"] and "none of its loaders" in said
        return
    events, _ = from_script(f"research:{name}")
    assert events[-1]["done"]["cached"] == N
    assert one_cache()["pipeline"] == "decode > resize((50, 50))"


def test_wrong_usage_of_warm_is_told_from_failure(data: Path, socket_path: Path) -> None:
    assert "--from" in run("warm", code=2)
    run("warm", data, "--from", "train.py", code=2)
    run("warm", data, "--interpolation", "bicubic", code=2)
    assert "there is no such script" in run("warm", "--from", "nowhere.py", code=1)


# Dropping.


def test_a_cache_is_dropped_by_any_name_of_its_folder(spellings: list[str], socket_path: Path) -> None:
    for name in spellings:
        run("warm", name)
        assert one_cache()["entries"] == N
        assert not run("drop", name).startswith("0 ")
        assert coprep.status()["caches"] == []


def test_what_has_no_cache_is_not_dropped(data: Path, socket_path: Path) -> None:
    run("warm", data)
    said = run("drop", "/typo", code=1)
    assert "no cache of /typo" in said and str(data) in said
    with loader(random_crop(coprep.ImageFolder(data).decode())) as train:
        ids(train)
        assert "in use" in run("drop", data, code=1)
    run("drop", data)
    assert "there are no caches" in run("drop", data, code=1)
