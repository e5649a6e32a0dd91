"""Presents the results: tables on the terminal, and the page for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.gpu.plan import JOBS, MODES
from tests.benchmarks.gpu.records import Record, Records, bars
from tests.benchmarks.loaders.records import Spread, quantile
from tests.benchmarks.loaders.report import number
from tests.benchmarks.loaders.tables import Section, Table, TablesPage, bars_table, tables_of
from tools.demo import screen

NOT_MEASURED: dict[str, Any] = {"rows": [], "latency": [], "native": {}, "conditions": {}, "left_out": []}


class NoResults(Exception):
    """The figures mean nothing, so there is no page of them. The message says why."""


def conditions(report: dict[str, Any]) -> str:
    of = report["conditions"]
    if not of:
        return "Not yet measured on a GPU."
    text = (
        f"{of['date']}, {of['gpu']}, {of['processor']}, {of['cores']} cores, PyTorch {of['torch']} (CUDA {of['cuda']})."
        f" {of['model']}, bfloat16 autocast, channels_last, cudnn.benchmark, batches of {of['batch_size']}."
        f" {of['photographs']:,} photographs, {of['photographs_mib']:,.0f} MiB, each under {of['copies']} names;"
        " random-resized-crop 224, flip; coprep's cache decoded and full."
        f" Windows of {of['seconds']:g} s in the steady state, {of['repeat']} of each case, taken in turn; medians"
        f" (lowest to highest). PyTorch's loaders have {of['workers']} worker processes in all."
    )
    if report["left_out"]:
        text += f" The time was up before {len(report['left_out'])} measurements of later repetitions."
    return text


def check_real(report: dict[str, Any]) -> None:
    """Checks that the figures are those of a GPU and of the model that is to be measured.

    Raises:
        NoResults: they are not.
    """
    of = report["conditions"]
    if of and of["is_dry_run"]:
        raise NoResults("this is a dry run, whose figures mean nothing: run it on a GPU, with the model resnet50")
    if report["native"].get("gpu", {}).get("is_fake"):
        raise NoResults("measure_gpu ran beside the fake driver, so its figures mean nothing")


def rates_table(records: Records) -> Table:
    header = ["mode", "jobs", "steps/s, all jobs", "each job", "of the limit", "waiting in next()", "others' cores"]
    return header, [rate_cells(records, record) for record in records.by_case.values()]


def rate_cells(records: Records, record: Record) -> list[str]:
    begin = [record.case.mode, str(record.case.jobs)]
    if record.error:
        return [*begin, record.error, *[""] * 4]
    return [
        *begin,
        spread(record.steps_per_s, 1),
        spread(record.each, 1),
        number(records.of_limit(record.case), 3),
        percent(record.wait_share),
        number(record.others_cores, 2),
    ]


def costs_table(records: Records) -> Table:
    header = [
        "mode",
        "jobs",
        "next() us p50",
        "p99",
        "until ready for the model us p50",
        "CPU s per 1,000 images",
        "of batches alone",
        "copies to the GPU per batch",
        "GPU memory in use MiB",
        "PyTorch's share of one job MiB",
    ]
    rows = [
        [
            record.case.mode,
            str(record.case.jobs),
            number(record.next_us_p50, 0),
            number(record.next_us_p99, 0),
            number(record.finish_us_p50, 0),
            number(record.cpu_s_per_1000, 3),
            number(records.data_cpu_s_per_1000(record.case), 3),
            number(record.uploads_per_batch, 3),
            number(record.used_mib, 0),
            number(record.allocated_mib, 0),
        ]
        for record in records.by_case.values()
        if not record.error
    ]
    return header, rows


def uploads_table(uploads: Sequence[dict[str, Any]]) -> Table:
    header = ["host memory", "MB", "GB/s", ""]
    return header, [
        [
            upload["from"],
            f"{upload['bytes'] / 1e6:.1f}",
            spread(Spread.of(upload["gb_per_s"]), 1),
            upload["why_bounced"] or "",
        ]
        for upload in uploads
    ]


def pinning_table(pinning: dict[str, Any]) -> Table:
    times = {"map": "map_s_per_gib", "pin": "pin_s_per_gib", "unpin": "unpin_s_per_gib"}
    header = [f"staging area of {pinning['bytes'] / 2**30:.2f} GiB", "ms per GiB", ""]
    return header, [
        [what, spread(Spread.of([1000 * seconds for seconds in pinning[name]]), 1), pinning["why_bounced"] or ""]
        for what, name in times.items()
    ]


def kernels_table(native: dict[str, Any]) -> Table:
    header = ["conversion of a batch", "us", "GB/s read and written", "different bits"]
    copy = native["plain_copy"]
    rows = [
        [f"{kernel['element']}, {kernel['order']}", *time_cells(kernel), str(kernel["different_bits"])]
        for kernel in native["kernels"]
    ]
    return header, [*rows, ["plain copy of as many bytes as float32 moves", *time_cells(copy), ""]]


def time_cells(of: dict[str, Any]) -> list[str]:
    median = statistics.median(of["us"])
    return [spread(Spread.of(of["us"]), 1), f"{of['bytes_moved'] / median / 1e3:,.0f}"]


def latency_table(latency: dict[int, dict[str, Any]]) -> Table:
    header = ["single uploads of 9.6 MB by another process, beside", "p50 us", "p99 us", "longest us", "uploads"]
    return header, [[beside(jobs), *latency_cells(results)] for jobs, results in latency.items()]


def beside(jobs: int) -> str:
    return f"{jobs} job{'s' * (jobs > 1)} that train" if jobs else "nothing"


def latency_cells(results: dict[str, Any]) -> list[str]:
    if "error" in results:
        return [results["error"], "", "", ""]
    us = results["latency"]["us"]
    return [*(number(quantile(us, share), 0) for share in (0.5, 0.99, 1.0)), str(len(us))]


def sections(report: dict[str, Any]) -> list[Section]:
    records = Records.of(report)
    found = []
    if records.by_case:
        found.append(Section("Training", [rates_table(records), costs_table(records), modes_table(records)]))
    if error := records.native.get("error"):
        found.append(Section("The parts by themselves", [(["measure_gpu"], [[error]])]))
    elif native := records.native:
        parts = [uploads_table(native["uploads"]), pinning_table(native["pinning"]), kernels_table(native)]
        found.append(Section("The parts by themselves", parts))
    if records.latency:
        found.append(Section("Uploads beside training", [latency_table(records.latency)]))
    jobs = sorted({case.jobs for case in records.by_case}) or JOBS
    return [*found, Section("Bars", [bars_table(bars(records, jobs))])]


def modes_table(records: Records) -> Table:
    measured = {case.mode for case in records.by_case}
    return ["mode", "batches"], [[mode, about] for mode, about in MODES.items() if mode in measured]


def page(report: dict[str, Any]) -> TablesPage:
    """Returns the page of complete tables.

    Raises:
        NoResults: the figures mean nothing.
    """
    check_real(report)
    return TablesPage("gpu", "Batches on the GPU", "make bench-gpu", conditions(report), sections(report))


def show(report: dict[str, Any]) -> None:
    for header, rows in tables_of(sections(report)):
        print()
        screen.table(header, rows)
    print(f"\n{conditions(report)}")


def spread(values: Spread | None, digits: int) -> str:
    if values is None:
        return ""
    return f"{values.median:,.{digits}f} ({values.min:,.{digits}f}-{values.max:,.{digits}f})"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
