"""Tests the expectations of a PyTorch user about errors, states, seeds, subsets and skipped samples."""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import coprep
import numpy as np
import pytest
import torch
import user_datasets as ud
from batches import ids
from coordinators import stream
from jobs import Start
from photos import make_folder
from user_jobs import HERE, NUMPY

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 24
TORCH: dict[str, Any] = {"num_workers": 2}


# --- errors of the first samples ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_whose_samples_all_fail_raises_from_next_once_per_batch(workers: int) -> None:
    """This is test_error of PyTorch's own tests."""
    data = ud.Faulty(N, list(range(N)), ud.fail)
    with coprep.DataLoader(data, 5, **{**NUMPY, "num_workers": workers}) as loader:
        epoch = iter(loader)
        errors = 0
        while True:
            try:
                next(epoch)
            except ud.Broken as error:
                errors += 1
                if workers:
                    assert isinstance(error.__cause__, coprep.SampleError)
            except StopIteration:
                break
        assert errors >= len(loader) == 5
        if workers:
            assert errors == len(loader)
        assert next(epoch, None) is None
        data.bad = []
        assert sorted(ids(loader)) == list(range(N))


def test_a_sample_of_which_no_batch_can_be_made_is_raised_from_next() -> None:
    epoch = iter(coprep.DataLoader([object(), object()], **TORCH))
    with pytest.raises(TypeError):
        next(epoch)


def test_wrong_arguments_are_raised_early() -> None:
    with pytest.raises(ValueError, match="subset"):
        coprep.DataLoader(ud.Numbers(N), subset=[1, -1])
    with pytest.raises(ValueError, match="999"):
        iter(coprep.DataLoader(ud.Numbers(N), subset=[1, 999], **TORCH))


# --- states ---------------------------------------------------------------------------------------------------


def lengths(loader: coprep.DataLoader, epochs: int) -> list[int]:
    return [len(list(loader)) for _ in range(epochs)]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": True, "seed": 3}], ids=str)
def test_a_state_after_the_last_batch_has_an_empty_rest(options: dict[str, Any]) -> None:
    """torchdata's StatefulDataLoader does the same: the resumed loop has no batches left, and the next one has all."""
    options = {"batch_size": 7, **options, **NUMPY}
    with coprep.DataLoader(ud.Numbers(N), **options) as loader:
        whole = len(loader)
        for _ in zip(range(whole), loader, strict=False):
            pass
        state = loader.state_dict()
        assert state["epoch"] == 0
        # A loop that is left there does not change the loader itself.
        assert lengths(loader, 2) == [whole, whole]
    with coprep.DataLoader(ud.Numbers(N), **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert lengths(loader, 3) == [0, whole, whole]
        after = loader.state_dict()
        assert after["epoch"] == 3
    with coprep.DataLoader(ud.Numbers(N), **options) as loader:
        loader.load_state_dict(after)
        assert lengths(loader, 2) == [whole, whole]


def test_a_resumed_loop_with_a_counter_trains_as_many_epochs() -> None:
    """A script that counts epochs itself, and was ended after any batch, gets each sample once per epoch."""
    options = {"batch_size": 7, "shuffle": True, **NUMPY}
    for stop in range(1, 9):
        seen: list[list[int]] = [[], []]
        state: dict[str, Any] = {}
        steps, at = 0, 0
        with coprep.DataLoader(ud.Numbers(N), **options) as loader:
            for at in range(2):
                for batch in loader:
                    seen[at] += batch[-1].tolist()
                    steps += 1
                    if steps == stop:
                        break
                if steps == stop:
                    state = loader.state_dict()
                    break
        with coprep.DataLoader(ud.Numbers(N), **options) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            for epoch in range(at, 2):
                seen[epoch] += ids(loader)
        assert [sorted(taken) for taken in seen] == [list(range(N))] * 2, stop


RANKED = """
import json, sys, coprep
from user_datasets import Numbers
state, rank, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loader = coprep.DataLoader(Numbers(24), 6, framework="numpy", with_index=True, num_workers=2,
                           rank=rank, world_size=2, group=sys.argv[4])
if steps < 0:
    loader.load_state_dict(json.load(open(f"{state}{rank}")))
    print(json.dumps([sum(len(batch[-1]) for batch in loader) for _ in range(3)]), flush=True)
else:
    for _ in zip(range(steps), loader):
        pass
    json.dump(loader.state_dict(), open(f"{state}{rank}", "w"))
    print("done", flush=True)
sys.stdin.readline()
"""


def test_ranks_that_resume_after_the_last_batch_have_an_empty_rest_too(start: Start, tmp_path: Path) -> None:
    for steps, group in ((2, "first"), (-1, "then")):
        jobs = [start(RANKED, tmp_path / "state", rank, steps, group, PYTHONPATH=HERE) for rank in range(2)]
        lines = [job.line() for job in jobs]
        for job in jobs:
            job.say("end")
            job.result()
    assert [json.loads(line) for line in lines] == [[0, 12, 12]] * 2


def test_a_state_can_be_written_as_json_and_by_torch() -> None:
    with coprep.DataLoader(ud.Numbers(N), 4, True, **NUMPY) as loader:
        epoch = iter(loader)
        given = [int(i) for _ in range(2) for i in next(epoch)[-1]]
        state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
    # Earlier versions wrote bytes.
    old = {**state, "version": 1, "delivered": base64.b64decode(state["delivered"])}
    for saved in (state, old):
        with coprep.DataLoader(ud.Numbers(N), 4, True, **NUMPY) as loader:
            loader.load_state_dict(saved)
            assert sorted(given + ids(loader)) == list(range(N))
    with coprep.DataLoader(ud.Numbers(N), 4, True, **NUMPY) as loader, pytest.raises(ValueError, match="damaged"):
        loader.load_state_dict({**state, "delivered": "%"})


# --- seeds ----------------------------------------------------------------------------------------------------


class Seeds(ud.Numbers):
    def __getitem__(self, i: int) -> Any:
        return torch.initial_seed(), torch.utils.data.get_worker_info().seed if self.root else 0


@pytest.mark.parametrize("workers", [0, 2])
def test_seeds_are_pytorchs_integers(workers: int) -> None:
    data = Seeds(64, root="workers" if workers else "")
    # Half of all keys have their highest bit set, and so do the workers' seeds.
    with coprep.DataLoader(data, 8, num_workers=workers, seed=2**64 - 9) as loader:
        for seeds, own in loader:
            assert seeds.dtype == own.dtype == torch.int64
            assert (seeds >= 0).all() and (own >= 0).all()


def fixed(worker: int) -> None:
    random.seed(1234)
    np.random.seed(1234)
    torch.manual_seed(12345)


def of_one(worker: int) -> None:
    np.random.seed(worker)
    np.random.rand(3)


def derived(worker: int) -> None:
    """This is the recipe in PyTorch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def of_worker_info(worker: int) -> None:
    np.random.seed(torch.utils.data.get_worker_info().seed % 2**32)


def draws(worker: int) -> None:
    random.random()
    np.random.rand(2)
    torch.rand(2)


class Drawing(ud.Numbers):
    def __getitem__(self, i: int) -> Any:
        return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize(
    ("init", "named"),
    [
        (fixed, "random, numpy.random, torch"),
        (of_one, "numpy.random"),
        (derived, None),
        (of_worker_info, None),
        (draws, None),
        (None, None),
    ],
)
def test_seeds_of_worker_init_fn_are_not_lost_without_a_word(init: Any, named: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with coprep.DataLoader(Drawing(N), 4, worker_init_fn=init, seed=5, **TORCH) as loader:
            drawn = [torch.stack(batch) for _ in range(2) for batch in loader]
    said = [warning for warning in caught if "worker_init_fn" in str(warning.message)]
    if named is None:
        assert not said
    else:
        (warning,) = said
        assert f"seeds {named}, " in str(warning.message) and "seed=" in str(warning.message)
        assert warning.filename == __file__
    # The samples are still those of the loader's seed.
    with coprep.DataLoader(Drawing(N), 4, num_workers=0, seed=5) as loader:
        for one, other in zip(drawn, [torch.stack(batch) for _ in range(2) for batch in loader], strict=True):
            assert torch.equal(one, other)


# --- subsets --------------------------------------------------------------------------------------------------


def half(kind: Any) -> Any:
    return kind([i % 2 == 0 for i in range(N)])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
def test_a_mask_of_the_right_length_names_samples(kind: Any) -> None:
    with coprep.DataLoader(ud.Numbers(N), 5, subset=half(kind), **NUMPY) as loader:
        assert ids(loader) == list(range(0, N, 2))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
@pytest.mark.parametrize("length", [N - 1, N + 1, 10])
def test_a_mask_of_another_length_is_refused_with_both(kind: Any, length: int) -> None:
    with pytest.raises(ValueError, match=rf"{length} elements.*{N} samples"):
        coprep.DataLoader(ud.Numbers(N), 5, subset=kind([True] * 5 + [False] * (length - 5)))


@pytest.mark.parametrize("length", [7, 9])
def test_a_mask_of_a_native_pipeline_is_refused_when_its_length_is_known(tmp_path: Path, length: int) -> None:
    data = coprep.ImageFolder(make_folder(tmp_path / "photos", 8)).decode().random_resized_crop(8)
    with (
        coprep.DataLoader(data, 2, subset=[True] * 3 + [False] * (length - 3)) as loader,
        pytest.raises(ValueError, match=rf"{length} elements.*8 samples"),
    ):
        iter(loader)
    with coprep.DataLoader(data, 2, subset=[True] * 3 + [False] * 5, with_index=True) as loader:
        assert ids(loader) == [0, 1, 2]


def test_a_mask_is_of_the_dataset_as_it_is_in_each_epoch() -> None:
    data = ud.Numbers(N)
    with coprep.DataLoader(data, 5, subset=half(list), **NUMPY) as loader:
        assert ids(loader) == list(range(0, N, 2))
        data.size = N + 1
        with pytest.raises(ValueError, match=rf"{N} elements.*{N + 1} samples"):
            iter(loader)


@pytest.mark.parametrize(
    ("subset", "words"),
    [
        ([1, 2, 1, 5], "the id 1 2 times"),
        (np.array([3, 7, 7, 7]), "the id 7 3 times"),
        (torch.tensor([4, 4]), "the id 4 2 times"),
        ([0, -2], "the id -2"),
        ([2**32], "the id 4294967296"),
        ([0.0, 1.0], "float64"),
        (["a"], "must be sample ids or a boolean mask"),
        (np.zeros((2, 3), bool), "one dimension"),
        (np.zeros(N, bool), "none of the 24"),
        ([], "empty"),
        (iter(()), "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_subset_is_one_clear_error(subset: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        coprep.DataLoader(ud.Numbers(N), 5, subset=subset)


def test_ids_may_come_in_any_form() -> None:
    for subset in ([5, 3], (5, 3), {3, 5}, range(3, 6, 2), np.array([5, 3]), torch.tensor([5, 3]), iter([5, 3])):
        with coprep.DataLoader(ud.Numbers(N), 5, subset=subset, **NUMPY) as loader:
            assert ids(loader) == [3, 5]


def test_a_subset_of_torch_may_repeat_samples() -> None:
    data = torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.arange(10)), [1, 1, 2])
    with coprep.DataLoader(data, 5, **TORCH) as loader:
        assert [batch[0].tolist() for batch in loader] == [[1, 1, 2]]


# --- skipped samples ------------------------------------------------------------------------------------------


def spoilt(tmp_path: Path, *bad: int) -> tuple[coprep.Pipeline, list[Path]]:
    make_folder(tmp_path / "photos", 40, classes=1)
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    for i in bad:
        files[i].write_bytes(b"no")
    return coprep.Files(files).decode().random_resized_crop(32), [files[i] for i in bad]


def test_each_skipped_sample_counts_once_however_many_epochs(tmp_path: Path) -> None:
    pipeline, files = spoilt(tmp_path, 3, 17, 30)
    options: dict[str, Any] = {"framework": "numpy", "with_index": True, "on_error": "skip"}
    with coprep.DataLoader(pipeline, 8, True, **options) as loader:
        assert loader.stats()["skipped"] == 0
        with pytest.warns(coprep.SkippedSampleWarning) as caught:
            for _ in range(3):
                assert len(ids(loader)) == 37
                assert loader.stats()["skipped"] == 3
        (warning,) = caught
        assert warning.filename == ids.__code__.co_filename
        text = str(warning.message)
        assert any(f"sample {i} ({file})" in text for i, file in zip((3, 17, 30), files, strict=True))
        assert "decode" in text and 'stats()["skipped"]' in text
        assert stream()["jobs"][0]["skipped"] == 3
        # A later job is told of bad samples before it meets one itself, and only of those in its own subset.
        with coprep.DataLoader(pipeline, 4, True, subset=[3, 4, 5, 6, 7], **options) as other:
            with pytest.warns(coprep.SkippedSampleWarning, match="sample 3 "):
                assert len(next(iter(other))[-1]) == 4
            assert other.stats()["skipped"] == 1
        with coprep.DataLoader(pipeline, 4, True, subset=[4, 5, 6, 7], **options) as other:
            assert sorted(ids(other)) == [4, 5, 6, 7]
            assert other.stats()["skipped"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_samples_of_a_python_dataset(workers: int) -> None:
    data = ud.Faulty(N, [3, 17, 18], ud.fail)
    options = {**NUMPY, "num_workers": workers}
    with coprep.DataLoader(data, 8, True, on_error="skip", **options) as loader:
        with pytest.warns(coprep.SkippedSampleWarning, match=r"sample (3|17|18) is left out.*Broken") as caught:
            for _ in range(3):
                assert len(ids(loader)) == N - 3
        assert len(caught) == 1
        assert loader.stats()["skipped"] == 3
        if workers:
            assert stream()["jobs"][0]["skipped"] == 3


def test_skipped_samples_survive_an_epoch_that_is_left() -> None:
    data = ud.Faulty(N, [0, 1, 2, 3], ud.fail)
    with coprep.DataLoader(data, 4, on_error="skip", **NUMPY) as loader:
        with pytest.warns(coprep.SkippedSampleWarning):
            for _ in range(4):
                next(iter(loader))
        assert len(ids(loader)) == N - 4
        assert loader.stats()["skipped"] == 4


def test_a_job_that_makes_warnings_errors_loses_no_batch() -> None:
    data = ud.Faulty(N, [2], ud.fail)
    with coprep.DataLoader(data, 4, on_error="skip", **NUMPY) as loader, warnings.catch_warnings():
        warnings.simplefilter("error", coprep.SkippedSampleWarning)
        epoch = iter(loader)
        with pytest.raises(coprep.SkippedSampleWarning):
            list(epoch)
        assert loader.stats()["skipped"] == 1


def test_a_job_that_raises_skips_nothing() -> None:
    data = ud.Faulty(N, [2], ud.fail)
    with coprep.DataLoader(data, 4, **NUMPY) as loader:
        with pytest.raises(ud.Broken):
            list(loader)
        assert (loader.stats()["errors"], loader.stats()["skipped"]) == (1, 0)
        assert stream()["jobs"][0]["skipped"] == 0


# --- tracebacks -----------------------------------------------------------------------------------------------


TRACED = """
import linecache, sys, coprep

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        try:
            return self.part(i)
        except KeyError as error:
            raise ValueError("no sample") from error  # the second line
    def part(self, i):
        raise KeyError("no part")  # the first line

CELL = '''
class Cell(Data):
    def part(self, i):
        raise KeyError("of the cell")  # the cell's line
'''
# As IPython does.
linecache.cache["<cell 7>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell 7>")
exec(compile(CELL, "<cell 7>", "exec"))

coprep.DataLoader({"cell": Cell, "script": Data}[sys.argv[1]](), 2, num_workers=1, framework="numpy")
for batch in coprep.DataLoader({"cell": Cell, "script": Data}[sys.argv[1]](), 2, num_workers=1, framework="numpy"):
    pass
"""


@pytest.mark.parametrize("where", ["script", "cell"])
def test_errors_in_code_of_the_script_have_file_and_line(tmp_path: Path, where: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRACED)
    done = subprocess.run([sys.executable, str(script), where], capture_output=True, text=True, timeout=60)
    error = done.stderr
    assert done.returncode == 1 and "dynamic-code" not in error, error
    assert f'File "{script}", line 11, in __getitem__' in error and "# the second line" in error
    if where == "script":
        assert f'File "{script}", line 13, in part' in error and "# the first line" in error
    else:
        assert 'File "<cell 7>", line 4, in part' in error and "# the cell's line" in error
    # The error has the name by which it can be caught, and no frames of coprep's workers or of a context manager.
    assert "\ncoprep.SampleError: sample 0 failed in dataset" in error
    assert "_worker.py" not in error and "contextlib" not in error and "ValueError: no sample" in error


@pytest.mark.parametrize("workers", [0, 1])
def test_for_numpy_a_sample_unlike_the_first_of_its_batch_is_a_value_error(workers: int) -> None:
    with pytest.raises(ValueError) as caught:
        list(coprep.DataLoader([1, 2, "three", 4], 2, num_workers=workers, framework="numpy"))
    assert type(caught.value) is ValueError


def test_tracebacks_name_what_can_be_imported() -> None:
    for name in ("CoprepError", "SampleError", "TimeoutError", "UnsharedWarning", "SkippedSampleWarning"):
        kind = getattr(coprep, name)
        assert (kind.__module__, kind.__qualname__) == ("coprep", name)
    error = coprep.SampleError("text", 3, "a.jpg", "decode")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.id, again.path) == (coprep.SampleError, 3, "a.jpg")
