"""Tests the part `peers` of the benchmark of remote storage: its arguments, files, addresses, memory and tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.storage.__main__ import PARTS, parse
from tests.benchmarks.storage.peers import measure
from tests.benchmarks.storage.peers.bucket import Bucket
from tests.benchmarks.storage.peers.formats import photographs, write_files
from tests.benchmarks.storage.peers.loaders import FORMATS, LOADERS, Loader, packages, workers_of
from tests.benchmarks.storage.peers.memory import Memory, disk_bytes, memory_of, shm_bytes
from tests.benchmarks.storage.peers.running import Epoch, Run
from tests.benchmarks.storage.peers.table import COLUMNS, OTHER_COLUMNS, PeerResults
from tests.benchmarks.storage.report import Results
from tests.support.object_server import ObjectServer
from tools.demo.children import ChildFailed

BY_LABEL = {loader.label: loader for loader in LOADERS}
NEEDED = ["photos", "--server", "server", "--out", "out"]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    server = ObjectServer()
    yield Bucket(server, samples=100, shards=16)
    server.close()


def a_run(images_per_s: float) -> Run:
    first = Epoch(images_per_s, 3.5, 1.0625, 0.125, 392.04, server_cores=0.1, others_cores=0.01)
    second = Epoch(2 * images_per_s, 2.5, 0, 0, 0, server_cores=0, others_cores=0.02)
    return Run([first, second], first_batch_s=0.75, memory_mib=1234.5, disk_mib=584.2, warm_up_s=0)


def results() -> PeerResults:
    found = PeerResults(1500, cores=2, versions={"coprep": "0.1.0", "litdata": "0.2.76"})
    found.runs[BY_LABEL["litdata"], 8] = [a_run(rate) for rate in (300, 500, 4100)]
    found.runs[BY_LABEL["webdataset"], 1] = [a_run(200)]
    return found


def test_other_loaders_need_the_environment_that_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([*NEEDED, "--peers", "python"]).only == PARTS
    assert parse([*NEEDED, "--only", "at-once"]).only == ["at-once"]
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--only", "peers"])
    assert "peers needs --peers PYTHON" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--only", "dali"])


def test_jobs_share_the_cores_and_have_at_least_one_worker_each() -> None:
    assert [workers_of(jobs, 2) for jobs in (1, 2, 8)] == [2, 1, 1]
    assert workers_of(8, 32) == 4


def test_each_loader_has_a_name_a_format_and_a_package_of_its_own() -> None:
    assert len(BY_LABEL) == len(LOADERS)
    assert set(FORMATS) == {"files", "tar", "mds", "litdata"}
    assert packages() == ["coprep", "webdataset", "mosaicml-streaming", "litdata"]
    assert [loader.label for loader in LOADERS if loader.jobs == (8,)] == ["litdata, one folder"]


def test_photographs_have_the_same_order_each_time_and_keep_their_classes(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        for number in range(20):
            (tmp_path / name / f"{name}{number}.jpg").write_bytes(name.encode())
    found = photographs(tmp_path, 30)
    assert found == photographs(tmp_path, 30) != sorted(found)
    assert len(set(found)) == 30 and all(label == ("b" in Path(path).name) for path, label in found)
    write_files(found, 0, tmp_path / "files")
    written = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    assert len(written) == 30
    assert all(path.read_bytes() == (b"a" if path.parent.name == "000" else b"b") for path in written)


@pytest.mark.parametrize(
    ("label", "url"),
    [
        ("coprep.ImageFolder", "s3://peers/files"),
        ("coprep.WebDataset", "s3://peers/tar/{000..015}.tar"),
        ("webdataset", "http://127.0.0.1:PORT/peers/tar/{000..015}.tar"),
        ("MosaicML streaming", "s3://peers/mds"),
        ("litdata, one folder", "s3://peers/litdata"),
    ],
)
def test_each_loader_reads_its_own_format(bucket: Bucket, label: str, url: str) -> None:
    port = bucket.server.address.rpartition(":")[2]
    assert bucket.url(BY_LABEL[label]) == url.replace("PORT", port)


def test_files_in_shared_memory_count_once() -> None:
    assert Memory(pss=900, pss_shared=300, files=200).total == 900
    assert Memory(pss=900, pss_shared=300, files=500).total == 1100
    own = memory_of([os.getpid()], files_before=shm_bytes())
    assert own.total >= own.pss > own.pss_shared >= 0
    assert own.pss > 1 << 20


def test_the_room_on_the_disk_is_that_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    before = disk_bytes(tmp_path)
    (tmp_path / "folder" / "file").write_bytes(os.urandom(100_000))
    assert 100_000 <= disk_bytes(tmp_path) - before < 200_000


def test_tables_have_medians_of_the_loaders_that_were_measured() -> None:
    one, eight = results().tables()
    assert one[0][0] == "1 job" and [row[0] for row in one[1]] == ["webdataset"]
    assert eight[1] == [["litdata", "500", "1,000", "1.062", "0.000", "392.0", "0.0", "3.50", "2.50", "1,234", "584"]]
    for header, rows in (*results().tables(), *(table for section in results().sections() for table in section.tables)):
        assert all(len(row) == len(header) for row in rows)
    assert results().spread(8)[1] == [["litdata", "300", "4,100", "600", "8,200"]]
    assert len(COLUMNS) + len(OTHER_COLUMNS) > len(eight[0]) - 1


def test_the_page_names_versions_and_workers() -> None:
    page = Results(Dataset(Path("photos"), [], 0), [], {}, quick=False, peers=results()).page().text()
    assert "1,500 photographs in about 16 shards" in page and "coprep 0.1.0, litdata 0.2.76." in page
    assert "2 with 1 job, 1 with 8 jobs" in page
    assert "## peers: other loaders of object stores\n" in page


def measured_while_first_runs_fail(failing: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> PeerResults:
    """Returns the results of two repetitions. The first run of `failing` fails with each number of jobs.

    Runs are made up, because the other loaders are not installed here.
    """
    begun: Counter[tuple[Loader, int]] = Counter()

    def run(loader: Loader, jobs: int, *_arguments: object) -> Run:
        begun[loader, jobs] += 1
        if loader.label == failing and begun[loader, jobs] == 1:
            raise ChildFailed("job 1 ended with code 1")
        return a_run(200)

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(measure, "versions", lambda *_arguments: {})
    monkeypatch.setattr(Bucket, "fill", lambda *_arguments: bucket)
    return measure.measure(bucket.server, Dataset(Path("photos"), [], 0), Path("python"), repeat=2, quick=True)


def test_another_loader_that_fails_leaves_the_figures_of_the_others(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured_while_first_runs_fail("litdata", bucket, monkeypatch)
    assert {(loader.label, jobs): len(runs) for (loader, jobs), runs in found.runs.items()} == {
        (loader.label, jobs): 1 if loader.label == "litdata" else 2 for loader in LOADERS for jobs in loader.jobs
    }
    assert found.conditions().endswith(" Runs that failed: litdata with 1 job (1), litdata with 8 jobs (1).")
    assert "failed" not in results().conditions()


def test_a_run_of_coprep_that_fails_ends_the_benchmark(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChildFailed, match="job 1 ended with code 1"):
        measured_while_first_runs_fail("coprep.WebDataset", bucket, monkeypatch)


def test_each_repetition_is_in_the_report() -> None:
    report = results().as_json()
    assert [(row["loader"], row["jobs"]) for row in report] == [("litdata", 8)] * 3 + [("webdataset", 1)]
    assert report[0]["epochs"][0]["gets"] == 1.0625


def test_a_loader_that_is_warmed_reads_what_the_other_one_reads() -> None:
    warmed: Loader = BY_LABEL["coprep.WebDataset, warmed"]
    assert warmed.is_warmed and warmed.form == BY_LABEL["coprep.WebDataset"].form
