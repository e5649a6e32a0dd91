"""Numbers that the pages state: constants of the sources, and measured gains."""

from __future__ import annotations

import math
import re

import pytest
from pages import DOCS, ROOT, prose, rows, section, told_by
from sources import sources_that_end

# A page, and for each number on it: the text around it, the end of the source's path, and the constant's name.
CONSTANTS = {
    "reference/errors.md": [
        (r"it has waited for (\d+ s) for somebody else", "client/src/notice.rs", "NOTIFY_AFTER"),
        (r"does not get on with a copy for (\d+ s)", "device/src/work.rs", "TIMEOUT"),
        (r"after (\d+ s), SampleError that names the sample, its size", "stream/sample/large.rs", "MOST_SHORT"),
        (r"an exception of more than (\d+ MiB)", "coprep/_exchange.py", "MOST_EXCEPTION"),
        (r"If (\w+) in a row end before they have made", "registry/user_code.rs", "MOST_ENDS"),
        (r"If (\w+) in a row are killed as they start", "client/src/launch.rs", "ATTEMPTS"),
        (r"(\w+) workers end on the same sample", "processes/worker.rs", "ATTEMPTS"),
    ],
    "reference/images.md": [
        (r"max_pixels is ([\d,]+) by default", "protocol/src/spec.rs", "DEFAULT_MAX_PIXELS"),
    ],
    "reference/audio.md": [
        (r"max_samples is ([\d,]+) by default", "protocol/src/spec.rs", "DEFAULT_MAX_SAMPLES"),
    ],
    "reference/samplers.md": [
        # 67 million stands for 2 to the power of 26.
        (r"of more than (\d+ million) draws is not shared", "protocol/src/message.rs", "MOST_DRAWS"),
        (r"has room: (\d+) batches", "src/stream/mod.rs", "QUEUE_DEPTH"),
    ],
    "how-to/gpu.md": [(r"GPU memory: (\w+) batches of uint8", "src/device/buffers.rs", "BUFFERS")],
    "how-to/ranks.md": [(r"After (\d+ seconds) a coprep.WaitingWarning", "client/src/notice.rs", "NOTIFY_AFTER")],
    "how-to/find-waits.md": [
        (r"after (\d+ s) or \d+ batches", "analyze/src/script.rs", "FEWEST_SECONDS"),
        (r"after \d+ s or (\d+) batches", "analyze/src/script.rs", "FEWEST"),
        (r"used more than (\S+) processors, the measurement", "measurement/src/quiet.rs", "NEGLIGIBLE_CPUS"),
    ],
    "how-to/troubleshoot.md": [
        (r"has more than (\d+) bytes", "storage/src/file.rs", "MOST_BYTES"),
        (r"until it is gone, for (\d+ minutes) at most", "processes/worker/ending.rs", "LONGEST_END"),
    ],
    "how-to/slow-samples.md": [(r"longer than timeout \((\d+ s)\)", "coprep/_loader.py", "_TIMEOUT")],
    "how-to/move-from-pytorch.md": [(r"waits for ever \| (\d+ s)\.", "coprep/_loader.py", "_TIMEOUT")],
    "how-to/share-search-jobs.md": [
        (r"no other member has come again for (\w+ seconds)", "engine/cohorts.rs", "GRACE"),
    ],
    "how-to/operate-coordinator.md": [
        (r"keeps up to (\d+ MiB) of the memory", "shared_memory/src/allocator.rs", "KEPT"),
    ],
    "how-to/object-stores.md": [
        (r"the indexes were made, (\d+ MiB) of them", "registry/mod.rs", "EARLY_READS"),
        (r"a window has (\d+ MiB) of images", "native/block_reads.rs", "DEFAULT_WINDOW_BYTES"),
        (r"those of about ([\d,]+) samples more", "native/block_reads.rs", "DRAWN_AHEAD"),
        (r"row groups with more than (\d+ GiB) of images", "parquet/src/rows.rs", "MOST_CHUNK"),
        (r"are regular files of (\d+ MiB) at most", "storage/src/file.rs", "MOST_TEXT"),
    ],
    "explanation/sharing.md": [(r"more than ([\d,]+) folders", "protocol/src/dataset_path.rs", "MOST_FOLDERS")],
    "explanation/scheduler.md": [
        (r"coordinator's queues are of (\d+) where", "src/stream/mod.rs", "QUEUE_DEPTH"),
        (r"queues of \d+, low-water mark (\d+)", "src/stream/mod.rs", "LOW_WATER"),
        (r"within (\w+) of its longest steps", "stream/pace.rs", "STEPS"),
        (r"at most a (\w+) of the samples that the job was assigned", "stream/pace.rs", "ASSIGNED_FOR_ONE"),
        (r"when (\w+ seconds) have passed without another one", "engine/cohorts.rs", "GRACE"),
    ],
    "explanation/shared-memory.md": [
        (r"an entry for each of (\d+) samples", "protocol/src/code/worker.rs", "ENTRIES"),
        (r"A ring has at most ([\d,]+) entries", "src/stream/mod.rs", "RING"),
        (r"refuses the memory for (\d+ s)", "stream/sample/large.rs", "MOST_SHORT"),
        (r"After (\d+ ms) the rest of a part stays", "shared_memory/src/mapping.rs", "COLLAPSE_TIMEOUT"),
    ],
    "explanation/slow-samples.md": [
        (r"a new value counts a (\w+)", "costs/src/table.rs", "NEWEST"),
        (r"of the last (\d+) preparations", "costs/src/quantile.rs", "REMEMBERED"),
        (r"(\d+ ms)\) of the last \d+ preparations", "costs/src/quantile.rs", "LEAST"),
        (r"as the longest predicted sample needs, and (\d+) more", "costs/src/lookahead.rs", "SPREAD"),
        (r"and \d+ more, at most (\d+)\.", "stream/drawing.rs", "LOOKAHEAD"),
        (r"takes less than (half) of a period", "costs/src/lookahead.rs", "LONG"),
        (r"varies by less than (\d+ %) by chance", "costs/src/lookahead.rs", "UNEVEN"),
        (r"has not begun (\d+ ms) later", "processes/worker.rs", "SLOW_CHECK_INTERVAL"),
        (r"bytes per second need, and up to (\w+) more", "costs/src/balance.rs", "SPARE"),
        (r"A read that takes longer than (\d+ seconds) is set apart", "threads/slow.rs", "STUCK"),
        (r"one more each (\d+ seconds)", "threads/slow.rs", "PROBE_EVERY"),
        (r"two more for each answer: at most (\d+)", "threads/slow.rs", "MOST_READS"),
        (r"gave (\d+) quick answers in a row", "threads/slow.rs", "QUICK_ANSWERS"),
        (r"At most (\d+) reads are set apart", "threads/stages.rs", "MOST_APART"),
    ],
    "explanation/architecture.md": [
        (r"It has (\w+) batch buffers", "src/device/buffers.rs", "BUFFERS"),
        (r"as are expected to take (\d+ ms), or", "processes/worker.rs", "TOGETHER"),
        (r"ms, or (\d+ ms) where they are to be cached", "processes/worker.rs", "TO_BE_KEPT"),
        (r"unless (\w+) of them usually take no longer", "processes/worker.rs", "UNKNOWN"),
        (r"looks at up to (\d+) more, for", "coprep/_worker.py", "_FURTHER_PROBES"),
        (r"more, for (\d+ ms) at most", "coprep/_worker.py", "_PROBE_TIME"),
        (r"it looks (\d+ seconds) for another coordinator", "loader/departure.rs", "SEARCH_TIMEOUT"),
        (r"keeps the departure for an (hour)", "registry/departures.rs", "KEPT"),
        (r"Up to (\d+ MiB) waits for it there", "connection/reply_queue.rs", "MOST_QUEUED"),
    ],
    "explanation/remote-storage.md": [
        (r"for a shard of up to (\d+ MiB);", "storage/src/large_reads.rs", "BYTES"),
        (r"are listed anew, (\w+) times at most", "shards/src/open.rs", "MOST_LISTINGS"),
        (r"At most (\d+) requests of several MiB", "storage/src/large_reads.rs", "AT_ONCE"),
        (r"memory \| (\d+ MiB) for all datasets", "registry/mod.rs", "EARLY_READS"),
        (r"one of them once ([\d,]+) keys in a row", "src/remote/listing.rs", "ORDERED_RUN"),
        (r"up to (\d+) objects that have bytes", "src/remote/parts.rs", "CHECKED"),
    ],
    "explanation/waits.md": [
        (r"armed from the beginning \| (\S+ s)", "stream/driver.rs", "POLL_INTERVAL"),
        (r"to prepare; the end \| condition variable \| (\S+ s)", "produce/threads/mod.rs", "POLL_INTERVAL"),
        (r"nothing ends this wait\. After (\d+ s)", "threads/slow.rs", "STUCK"),
        (r"DeadlineQueue::close \| (\S+ s)", "processes/worker.rs", "POLL_INTERVAL"),
        (r"others behind it \| looks each (\d+ ms)", "processes/worker.rs", "SLOW_CHECK_INTERVAL"),
        (r"the fork server's listener [^.]* its socket \| (\S+ s)", "processes/fork_server.rs", "POLL_INTERVAL"),
        (r"before it is killed \| its pidfd; a deadline, (\S+ s)", "processes/fork_server.rs", "GRACE"),
        (r"asks one, and after (\S+ s) without an answer", "stream/servers.rs", "ANSWER_TIME"),
        (r"looks each (\d+ ms) for a job that waits", "stream/servers.rs", "SOON"),
        (r"to take note, for (\d+ s) at most", "client/src/loader/mod.rs", "LEAVE_PASS_TIMEOUT"),
        (r"or the fork server's, for (\d+ s) at most", "processes/worker/ending.rs", "LONGEST_END"),
        (r"end of a session \| descriptors \| (\d+ s)", "src/server/mod.rs", "POLL_INTERVAL"),
        (r"reads that are stuck \| looks each (\S+ s)", "src/server/mod.rs", "MAINTENANCE_INTERVAL"),
        (r"the next report \| a deadline, (\S+ s)", "registry/warm.rs", "REPORT_EVERY"),
        (r"hang up or end \| looks each (\S+ s)", "client/src/timeout.rs", "POLL_INTERVAL"),
        (r"to be told \| the socket, for (\d+ s) at most", "loader/link.rs", "LEAVE_TIMEOUT"),
        (r"lost its own \| looks each \d+ ms, for (\d+ s) at most", "loader/departure.rs", "SEARCH_TIMEOUT"),
        (r"lost its own \| looks each (\d+ ms)", "loader/departure.rs", "RETRY_PAUSE"),
        (r"to have started one \| looks each (\d+ ms)", "client/src/launch.rs", "RETRY_PAUSE"),
    ],
}
WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "quarter": 0.25, "half": 0.5, "fiftieth": 50, "hour": 3600}
UNITS = {"": 1, "ms": 1e-3, "s": 1, "seconds": 1, "minutes": 60, "MiB": 2**20, "GiB": 2**30, "million": 1e6, "%": 0.01}


def quantity(text: str) -> float:
    """Returns the number that a page tells, in seconds or bytes if it has a unit."""
    number, _, unit = text.partition(" ")
    value = WORDS.get(number.lower())
    return (float(number.replace(",", "")) if value is None else value) * UNITS[unit]


def constant(path: str, name: str) -> float:
    """Returns the value of a constant of a source, in seconds if it is a time."""
    (source,) = sources_that_end(path)
    definition = re.compile(rf"^(?:pub.* |const )*{name}\b(?:: .+?)? = ([^;\n]+)", re.MULTILINE)
    (text,) = definition.findall((ROOT / source).read_text())
    time = re.fullmatch(r"Duration::from_(secs|millis)\((\d+)\)", text)
    if time:
        return int(time[2]) * {"secs": 1, "millis": 1e-3}[time[1]]
    factors = text.split(" * ")
    if len(factors) > 1:
        return math.prod(constant(path, factor) for factor in factors)
    first, *shifts = text.replace("_", "").split(" << ")
    return float(first) * 2 ** sum(map(int, shifts))


@pytest.mark.parametrize(
    ("page", "around", "source", "name"),
    [(page, *row) for page, table in CONSTANTS.items() for row in table],
)
def test_numbers_are_the_constants_of_the_sources(page: str, around: str, source: str, name: str) -> None:
    told = re.findall(around, told_by(DOCS / page))
    assert [quantity(text) for text in told] == [pytest.approx(constant(source, name), rel=0.002)]


def test_a_coordinator_ends_when_it_is_told() -> None:
    serve = (ROOT / "tools" / "src" / "serve.rs").read_text()
    ((auto, alone),) = re.findall(r"idle\.unwrap_or\(if args\.auto \{ (\d+) \} else \{ (\d+) \}\)", serve)
    (warm,) = re.findall(r"idle_warm\.unwrap_or\((\d+)\)", serve)
    settings = {row[0]: row[2] for row in rows(prose(DOCS / "reference" / "settings.md"))}
    assert settings["`--idle`"] == f"{alone}, or {auto} if a job started it" and settings["`--idle-warm`"] == warm


def test_each_poll_interval_of_the_coordinator_is_told() -> None:
    told = [row[3] for row in rows(section(DOCS / "explanation" / "waits.md", "Coordinator")) if row[3]]
    intervals = [
        constant(source, "POLL_INTERVAL")
        for source in sources_that_end("coordinator/src/")
        for _ in re.findall(r"\bpoll_every\(POLL_INTERVAL\)", (ROOT / source).read_text())
    ]
    assert sorted(map(quantity, told)) == sorted(intervals)


def test_the_gain_is_told_as_it_was_measured() -> None:
    measured = (DOCS / "results" / "tables" / "loaders.md").read_text()
    gains = rows(section(ROOT / "README.md", "The gain"))
    assert len(gains) == 4
    for name, alone, eight, *_ in gains:
        assert re.search(rf"^\|.*\| {alone} \(.*\| {eight} \(", measured, re.MULTILINE), name
    assert [[*row[:3], row[-1]] for row in gains] == rows(section(DOCS / "index.md", "The gain"))
