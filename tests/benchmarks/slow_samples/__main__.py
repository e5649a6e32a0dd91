"""Measures slow samples: the order of batches, the form in the cache, the cost of measuring, and the balance of
threads.

usage: python -m tests.benchmarks.slow_samples DATA --out FOLDER [--limit PROGRAM] [--overhead PROGRAM]
       [--only order,forms,cost,watch,balance] [--repeat 3] [--samples images-native,spin-10x]
       [--loaders coprep-relaxed] [--storages slowed] [--forms auto] [--budgets 5,50]
       [--scenarios storage,latency] [--works images-off,python] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.loaders.arguments import words
from tests.benchmarks.loaders.measure import Dataset
from tests.benchmarks.slow_samples import balance, forms, order, report, samples
from tests.benchmarks.slow_samples.balance import BalanceOptions, measure_balance
from tests.benchmarks.slow_samples.cost import measure_cost
from tests.benchmarks.slow_samples.features import Features
from tests.benchmarks.slow_samples.forms import FormsOptions, measure_forms
from tests.benchmarks.slow_samples.order import OrderOptions, measure_order
from tests.benchmarks.slow_samples.pairs import WORKS, PairOptions
from tests.benchmarks.slow_samples.samples import all_samples
from tests.benchmarks.slow_samples.subset import part_of
from tests.benchmarks.slow_samples.watch import measure_watch
from tools.demo.children import exit_code
from tools.demo.screen import heading

PARTS = ("order", "forms", "cost", "watch", "balance")
QUICK_IMAGES = 256
"""Images for the parts that otherwise take all of them."""


def benchmark(args: argparse.Namespace, folder: Path) -> None:
    """Runs the chosen parts. `folder` receives links to images, where a part takes a subset of them."""
    features = Features.find()
    data = Dataset.find(args.data.resolve())
    few = part_of(data, QUICK_IMAGES, folder / "few") if args.quick else data
    results = report.Results(few, features.missing(), args.repeat, args.quick)
    if results.missing:
        print(f"not in this coprep, and left out: {'; '.join(results.missing)}")
    if "order" in args.only:
        heading("order")
        sets = all_samples(few, args.samples, args.quick, folder / "order")
        limit = args.limit and args.limit.resolve()
        results.order = measure_order(OrderOptions(sets, args.loaders, features, limit, args.repeat))
    if "forms" in args.only:
        heading("forms")
        some = part_of(data, forms.QUICK_IMAGES if args.quick else forms.IMAGES, folder / "forms")
        budgets = args.budgets or (forms.QUICK_BUDGETS if args.quick else forms.BUDGETS)
        listings = forms.QUICK_LISTINGS if args.quick else forms.LISTINGS
        results.forms = measure_forms(
            FormsOptions(some, args.forms, args.storages, budgets, features, listings, args.repeat)
        )
    overhead = args.overhead and args.overhead.resolve()
    pairs = PairOptions(few, features, args.works, args.repeat, args.quick)
    if "cost" in args.only:
        heading("cost")
        results.cost = measure_cost(pairs, overhead)
    if "watch" in args.only:
        heading("watch")
        results.watch = measure_watch(pairs, overhead)
    if "balance" in args.only:
        heading("balance")
        results.balance = measure_balance(BalanceOptions(few, args.scenarios, features, args.repeat, args.quick))
    report.show(results)
    print("\n" + ", ".join(map(str, report.write(results, args.out))))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-slow", description="how slow samples are dealt with")
    parser.add_argument("data", type=Path, help="an image folder: one sub-folder per class, with a few large images")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=Path, help="the program that measures the limit of coprep's own pipeline")
    parser.add_argument("--overhead", type=Path, help="the program that measures what measuring costs by itself")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    for name, known in (
        ("only", PARTS),
        ("samples", samples.NAMES),
        ("loaders", tuple(order.LOADERS)),
        ("forms", forms.FORMS),
        ("storages", tuple(forms.STORAGES)),
        ("scenarios", tuple(balance.SCENARIOS)),
        ("works", tuple(work.name for work in WORKS)),
    ):
        parser.add_argument(f"--{name}", type=words(known), default=known, help=f"of {', '.join(known)}")
    parser.add_argument("--budgets", type=lambda text: [int(word) for word in text.split(",")], help="per cent")
    args = parser.parse_args()
    args.repeat = args.repeat or (1 if args.quick else 3)
    if not args.data.is_dir() or not Dataset.find(args.data.resolve()).files:
        parser.error(f"no files in {args.data}")
    return args


def main() -> int:
    args = parse()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="coprep-") as folder:
            benchmark(args, Path(folder))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
