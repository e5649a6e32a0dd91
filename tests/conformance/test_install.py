"""Tests programs that make PyTorch's loader share without being changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coprep
import pytest
import user_datasets as ud
from waiting import WAIT, until

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

OWN = data.DataLoader


@pytest.fixture
def installed(socket_path: Path) -> Iterator[Path]:
    coprep.install()
    try:
        yield socket_path
    finally:
        coprep.uninstall()


def numbers(loader: Any) -> list[int]:
    arrays = [batch[0] if isinstance(batch, (list, tuple)) else batch for batch in loader]
    return [int(x) for array in arrays for x in array.flatten()]


class Own(data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([3, 1])

    def __len__(self) -> int:
        return 2


class Locked(data.Dataset[int]):
    """A dataset with an open file, which a worker inherits."""

    def __init__(self) -> None:
        self.file = open(os.devnull)  # noqa: SIM115

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return i


class Derived(data.DataLoader[Any]):
    def __init__(self, dataset: Any, *args: Any, extra: int = 0, **options: Any) -> None:
        super().__init__(dataset, *args, **options)
        self.extra = extra


@pytest.mark.parametrize("where", ["torch.utils.data", "coprep"])
def test_any_sampler_works_with_our_class_in_the_place_of_pytorchs(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(data, "DataLoader", coprep.DataLoader)
    monkeypatch.setattr(data.dataloader, "DataLoader", coprep.DataLoader)
    if where == "coprep":
        # PyTorch is imported after this package, and its names are replaced before a loader is made.
        monkeypatch.setattr("coprep._unshared._own", None)
    with pytest.warns(coprep.UnsharedWarning):
        loader = data.DataLoader([10, 11, 12, 13], sampler=Own(), num_workers=1)
    assert numbers(loader) == [13, 11]
    assert type(loader._private) is OWN


def test_pytorchs_loader_shares_from_wherever_it_is_called(installed: Path) -> None:
    for make in (data.DataLoader, data.dataloader.DataLoader, OWN, OWN[int]):
        loader: Any = make(ud.Numbers(8), batch_size=4, num_workers=1)
        assert isinstance(loader, coprep.DataLoader)
        assert isinstance(loader, OWN) and isinstance(loader, data.DataLoader)
        assert len(loader) == 2
        assert loader.num_workers == 1 and loader.batch_size == 4 and loader.multiprocessing_context is None
        with loader:
            assert len(numbers(loader)) == len(numbers(loader)) == len(numbers(loader._get_iterator()))
            assert len(coprep.status()["streams"]) == 1


def test_it_can_be_undone_and_done_again(socket_path: Path) -> None:
    kinds = []
    for _ in range(2):
        coprep.install()
        coprep.install()
        kinds.append(type(data.DataLoader([1])))
        coprep.uninstall()
        coprep.uninstall()
        kinds.append(type(data.DataLoader([1])))
    assert issubclass(kinds[0], coprep.DataLoader)
    assert kinds == [kinds[0], OWN, kinds[0], OWN]
    assert numbers(data.DataLoader([1, 2], batch_size=2)) == [1, 2]


def test_derived_classes_stay_pytorchs(installed: Path) -> None:
    loader = Derived([1, 2, 3], 2, extra=5)
    assert not isinstance(loader, coprep.DataLoader) and isinstance(loader, data.DataLoader)
    assert numbers(loader) == [1, 2, 3] and loader.extra == 5

    class Base:
        def __new__(cls, *args: Any, **options: Any) -> Any:
            made = super().__new__(cls)
            made.given = (args, options)  # type: ignore[attr-defined]
            return made

    class Both(Derived, Base):
        pass

    both: Any = Both([1], batch_size=1)
    assert both.given == (([1],), {"batch_size": 1}) and numbers(both) == [1]


def test_what_cannot_be_shared_is_left_to_pytorch(installed: Path) -> None:
    with pytest.warns(coprep.UnsharedWarning, match="Own is an order of its own") as caught:
        loader = data.DataLoader([10, 11, 12, 13], sampler=Own())
    assert caught[0].filename == __file__
    assert numbers(loader) == [13, 11]


@pytest.mark.parametrize("held", ["file", "connection"])
def test_a_dataset_that_cannot_be_pickled_is_shared(installed: Path, held: str) -> None:
    samples: Any = Locked() if held == "file" else ud.Identified(ud.Connected().connection, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", coprep.UnsharedWarning)
        with data.DataLoader(samples, batch_size=2, num_workers=1) as loader:
            for _ in range(2):
                assert len(numbers(loader)) == (4 if held == "file" else 4 * 64)
            assert len(coprep.status()["streams"]) == 1


def test_a_dataset_that_reopens_its_files_is_shared(installed: Path, tmp_path: Path) -> None:
    samples = ud.Reopening(tmp_path, 8)
    assert samples[3][-1] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", coprep.UnsharedWarning)
        with data.DataLoader(samples, batch_size=4, num_workers=1) as loader:
            assert [batch[-1].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert len(coprep.status()["streams"]) == 1


def test_without_a_distributed_sampler_each_rank_has_the_whole_dataset(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with data.DataLoader(ud.Numbers(8), batch_size=4, num_workers=1) as loader:
        assert len(loader) == 2
        assert len([1 for _ in loader]) == 2
    sampler: Any = data.distributed.DistributedSampler(ud.Numbers(8), num_replicas=2, rank=0)
    assert len(data.DataLoader(ud.Numbers(8), batch_size=2, sampler=sampler)) == 2


def test_the_default_collation_may_be_given_as_it_was_found(installed: Path) -> None:
    first = data.DataLoader(ud.Numbers(8), batch_size=4, num_workers=1)
    again = type(first)(first.dataset, batch_sampler=first.batch_sampler, collate_fn=first.collate_fn, num_workers=1)
    with first, again:
        assert len(numbers(first)) == len(numbers(again))
        assert first._native.attached()["stream"] == again._native.attached()["stream"]


def test_the_state_of_an_installed_loader_is_that_of_ours(installed: Path) -> None:
    with data.DataLoader(ud.Numbers(8), batch_size=2, num_workers=1) as loader:
        assert loader.state_dict() == {}, "it has not begun"
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with data.DataLoader(ud.Numbers(8), batch_size=2, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3


# --- programs -------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return i

def train(rank=0):
    loader = DataLoader(Data(), batch_size=8, shuffle=True, num_workers=1)
    seen = sorted(int(x) for batch in loader for x in batch)
    # One write, so that processes that print at once do not mix their lines, even where output is not buffered.
    sys.stdout.write(f"{type(loader).__module__.partition('.')[0]} {seen == list(range(24))}\\n")
    sys.stdout.flush()

if __name__ == "__main__":
    print(__name__, __file__, sys.argv, sys.path[0], __spec__ and __spec__.name, sys.modules["__main__"].Data is Data)
    print("__annotations__" in globals())
    exec(sys.argv[1])
"""


def python(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=2 * WAIT,
        cwd=cwd,
        env={**os.environ, **env},
    )


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder with a script, a package, and an archive."""
    folder = tmp_path / "some folder"
    (folder / "pkg").mkdir(parents=True)
    (folder / "app").mkdir()
    for name in ("train.py", "pkg/__init__.py", "pkg/train.py", "app/__main__.py"):
        (folder / name).write_text("" if name.endswith("__init__.py") else SCRIPT)
    return folder


@pytest.mark.parametrize(
    "program",
    [
        ["some folder/train.py"],
        ["some folder/../some folder/./train.py"],
        ["some folder/app"],
        ["-m", "pkg.train"],
        ["-m", "missing"],
        ["missing.py"],
    ],
)
@pytest.mark.parametrize(
    "code", ["1", "sys.exit(3)", "sys.exit('a message')", "1 / 0", "exec('(')", "import os; os._exit(4)"]
)
def test_a_program_runs_as_by_itself(tmp_path: Path, scripts: Path, program: list[str], code: str) -> None:
    if program[-1].startswith("missing") and code != "1":
        pytest.skip("the same for any code")
    path = {"PYTHONPATH": str(scripts)} if "-m" in program else {}
    own = python(*program, code, "--option", cwd=tmp_path, **path)
    ours = python("-m", "coprep", "run", *program, code, "--option", cwd=tmp_path, **path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (own.returncode, own.stdout, own.stderr)


def test_a_program_shares_and_so_do_processes_that_it_spawns(socket_path: Path, scripts: Path) -> None:
    for code in (
        "train()",
        "import torch.multiprocessing as m; m.spawn(train, nprocs=2)",
        "import multiprocessing as m; p = m.get_context('forkserver').Process(target=train); p.start(); p.join()",
        "import concurrent.futures as f, multiprocessing as m\n"
        "with f.ProcessPoolExecutor(1, m.get_context('spawn')) as pool: pool.submit(train).result()",
    ):
        ran = python("-m", "coprep", "run", "train.py", code, cwd=scripts)
        assert ran.returncode == 0, ran.stderr
        assert set(ran.stdout.splitlines()[2:]) == {"coprep True"}
    assert python("train.py", "train()", cwd=scripts).stdout.splitlines()[2:] == ["torch True"]


def test_installing_before_pytorch_is_imported_imports_nothing(scripts: Path, socket_path: Path) -> None:
    code = """
    import sys, coprep
    coprep.install()
    assert "torch" not in sys.modules
    import torch.utils.data
    assert torch.utils.data.dataloader.__spec__.loader is torch.utils.data.dataloader.__loader__
    loader = torch.utils.data.DataLoader([1, 2], batch_size=2)
    print(isinstance(loader, coprep.DataLoader), [b.tolist() for b in loader])
    """
    ran = python("-c", textwrap.dedent(code), cwd=scripts)
    assert ran.stdout == "True [[1, 2]]\n", ran.stderr


def test_a_program_that_is_interrupted_ends_so(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "coprep", "run", "wait.py"]
    program = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "waits\n"
    program.send_signal(signal.SIGINT)
    until(lambda: program.poll() is not None, "it ends")
    _, err = program.communicate()
    assert program.returncode == -signal.SIGINT
    assert err.splitlines()[0].startswith("Traceback") and "wait.py" in err.splitlines()[1]


def test_a_wrong_use_of_run_says_how(tmp_path: Path) -> None:
    for arguments, code in (([], 2), (["-m"], 2), (["-x"], 2), (["--help"], 0)):
        ran = python("-m", "coprep", "run", *arguments, cwd=tmp_path)
        assert ran.returncode == code
        assert "usage: python -m coprep run SCRIPT" in ran.stdout + ran.stderr


# --- libraries that make, remake and check loaders ------------------------------------------------------------

LIGHTNING = """
import lightning, sys, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.tensor([float(i)]), i

def loader(**options):
    return DataLoader(Data(), batch_size=8, num_workers=1, **options)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def training_step(self, batch, i):
        self.seen += batch[1].tolist()
        return self.layer(batch[0]).sum()
    def on_train_end(self):
        print(self.trainer.world_size, len(self.seen), type(self.trainer.train_dataloader).__module__, flush=True)
    def predict_step(self, batch, i):
        return batch[1]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)
    def train_dataloader(self):
        return loader(shuffle=True)

if __name__ == "__main__":
    strategy, devices = sys.argv[1], int(sys.argv[2])
    model = Model()
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=devices, strategy=strategy, logger=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model)
    if devices == 1:
        print(torch.cat(trainer.predict(model, loader())).tolist() == list(range(32)))
"""

TRANSFORMERS = """
import torch, transformers, coprep, warnings
from torch.utils.data import Dataset
warnings.simplefilter("error", coprep.UnsharedWarning)

class Data(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "labels": torch.tensor(float(i))}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def forward(self, x, labels):
        if self.training:
            self.seen += labels.tolist()
        return {"loss": ((self.layer(x).squeeze(-1) - labels) ** 2).mean() * 1e-6, "logits": x}

if __name__ == "__main__":
    model = Model()
    arguments = transformers.TrainingArguments(
        "out", num_train_epochs=2, per_device_train_batch_size=8, dataloader_num_workers=1, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no")
    trainer = transformers.Trainer(model, arguments, train_dataset=Data(), eval_dataset=Data())
    trainer.train()
    print(sorted(model.seen) == sorted(2 * list(range(32))))
    print(trainer.predict(Data()).label_ids.tolist() == list(range(32)))
    print(len(coprep.status()["streams"]) > 0)
"""


PREDICTIONS = """
import lightning, torch, coprep
from lightning.pytorch.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader, Dataset, RandomSampler

class Data(Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, i):
        return torch.tensor(i)

class Writer(BasePredictionWriter):
    def __init__(self):
        super().__init__("batch_and_epoch")
        self.written = []
    def write_on_batch_end(self, trainer, module, prediction, ids, batch, batch_number, loader):
        self.written.append(prediction.tolist() == ids == (batch - 100).tolist())
    def write_on_epoch_end(self, trainer, module, predictions, ids):
        self.written.append([some.tolist() for some in predictions] == ids[0])

class Model(lightning.LightningModule):
    def predict_step(self, batch, i):
        return batch - 100

def collated(samples):
    return torch.stack(samples) + 100

class Module(lightning.LightningDataModule):
    # Lightning notes with which arguments a loader is made here.
    def __init__(self, sampler):
        super().__init__()
        self.sampler = sampler
    def predict_dataloader(self):
        return DataLoader(Data(), batch_size=8, num_workers=1, sampler=self.sampler, collate_fn=collated)

if __name__ == "__main__":
    random = RandomSampler(Data())
    for sampler, is_module in ((None, False), (None, True), (random, False), (random, True)):
        writer = Writer()
        trainer = lightning.Trainer(accelerator="cpu", devices=1, logger=False, callbacks=[writer],
                                    enable_progress_bar=False, enable_model_summary=False)
        loader = Module(sampler) if is_module else Module(sampler).predict_dataloader()
        for _ in range(2):
            trainer.predict(Model(), loader, return_predictions=False)
        print(writer.written == [True] * 10)
        # Lightning has put a loader with a sampler of its own in the place of this one.
        print(trainer.predict_dataloaders._private is None, trainer.predict_dataloaders.num_workers)
"""


def ran(folder: Path, script: str, *arguments: str) -> list[str]:
    (folder / "script.py").write_text(script)
    done = python("-m", "coprep", "run", "script.py", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line[:1].isdigit() or line[:4] in ("True", "Fals")]


def test_lightning_trains_and_predicts(socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    assert ran(tmp_path, LIGHTNING, "auto", "1") == ["1 64 coprep._loader", "True"]


def test_lightnings_predictions_are_shared_and_written_with_their_ids(socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    # A random order cannot be written beside the batches, and is left to PyTorch.
    assert ran(tmp_path, PREDICTIONS) == ["True", "True 1"] * 2 + ["True", "False 1"] * 2


def test_lightning_gives_each_spawned_rank_its_part(socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    # Lightning puts a DistributedSampler into a loader of the same class.
    assert ran(tmp_path, LIGHTNING, "ddp_spawn", "2") == ["2 32 coprep._loader"] * 2


def test_the_trainer_of_transformers_trains_and_predicts(socket_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    assert ran(tmp_path, TRANSFORMERS) == ["True", "True", "True"]


RANKS = """
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Data(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return i

def ids(loader):
    return [int(x) for batch in loader for x in batch]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    data, rank, both = Data(), dist.get_rank(), [None, None]
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1)
    dist.all_gather_object(both, ids(loader) + ids(loader))
    whole = ids(DataLoader(data, batch_size=8, num_workers=1))
    dist.all_gather_object(both_whole := [None, None], whole)
    if rank == 0:
        print(type(loader).__module__ == "coprep._loader")
        print(len(both[0]) == 40 and sorted(both[0] + both[1]) == sorted(2 * list(range(40))))
        print(both_whole == [list(range(40))] * 2)
        print(ids(DataLoader(data, batch_size=8, num_workers=1)) == list(range(40)))
    dist.destroy_process_group()
"""


def test_ranks_of_torchrun_have_what_pytorch_gives_them(socket_path: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANKS)
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone", "-m", "coprep", "run", "script.py")
    done = python(*launch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # With the sampler each rank has a part, else all samples; and rank 0 may iterate over a loader alone.
    assert done.stdout.split() == ["True"] * 4


BY_HAND = """
import sys
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Data(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return i

def train(_, rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", world_size=2, rank=rank)
    data = Data()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1, timeout=20)
    print(*(int(x) for _ in range(2) for batch in loader for x in batch), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (int(sys.argv[1]), sys.argv[2]))
"""


def outputs(processes: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Returns what each process printed, on stdout and stderr, once all have ended. None is left behind."""
    # All together have less than the 180 s that the runner allows a test, so that this wait reports the one that hangs.
    end = time.monotonic() + 2 * WAIT
    try:
        return [process.communicate(timeout=max(0.0, end - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_ranks_that_were_launched_one_by_one_are_one_job(socket_path: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BY_HAND)
    # Otherwise Gloo takes the interface of the host's name, which need not be the loopback.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "coprep", "run", "script.py", str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=env,
        )
        for rank in range(2)
    ]
    said = outputs(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    ids = [list(map(int, out.split())) for out, _ in said]
    assert len(ids[0]) == 40 and sorted(ids[0] + ids[1]) == sorted(2 * list(range(40)))
