"""Sixty kinds of objects that datasets hold, to see whether processes agree on their identity, used or not.

By hand, with an environment that has coprep, albumentations, MONAI, kornia, Hydra and so on:

    python tests/support/identity_catalogue.py
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"word{i}" for i in range(40)]
"""Words whose order in a set differs between processes."""

DIFFER = {
    "BatchNorm in training": "its running mean is a part of the model",
    "list made of a set": "its order is what the program sees",
}
"""Objects that rightly count as others, once they were used or in another process, with the reason."""


class Entry:
    """A kind of object."""

    def __init__(self, module: str, make: Callable[[Any], Any], use: Callable[[Any], Any] | None) -> None:
        self.module = module
        self.make = make
        self.use = use


CATALOGUE: dict[str, Entry] = {}


def kind(name: str, module: str, make: Callable[[Any], Any], use: Callable[[Any], Any] | None = None) -> None:
    """Adds a kind: how to make an object with the module that it needs, and how to use it."""
    CATALOGUE[name] = Entry(module, make, use)


def image() -> Any:
    return np.zeros((16, 16, 3), np.uint8)


def lit(*shape: int) -> Any:
    import torch

    return torch.ones(shape)


# --- Python -------------------------------------------------------------------------------------------------------

kind("set of words", "builtins", lambda _: set(WORDS), lambda x: "a" in x)
kind("dict of sets", "builtins", lambda _: {word: {*WORDS, word} for word in WORDS})
kind("frozenset of tuples", "builtins", lambda _: frozenset((word, 1) for word in WORDS))
kind("list made of a set", "builtins", lambda _: list(set(WORDS)))
kind("Counter", "collections", lambda _: Counter(WORDS), lambda x: x.most_common(3))
kind("defaultdict", "collections", lambda _: defaultdict(list, a=[1]), lambda x: x["a"])
kind("OrderedDict", "collections", lambda _: OrderedDict(a=1, b=2), lambda x: list(x))
kind("deque", "collections", lambda _: deque(WORDS, maxlen=50), lambda x: x[3])
kind("dict views", "builtins", lambda _: [d := {"a": 1}, d.keys(), d.values(), d.items()], lambda x: list(x[1]))
kind("mappingproxy", "types", lambda m: m.MappingProxyType({"a": 1}), lambda x: x["a"])
kind("memoryview", "builtins", lambda _: memoryview(b"abc"), lambda x: x[0])
kind("pattern", "re", lambda _: re.compile("a+"), lambda x: x.match("aa"))
kind("BytesIO", "io", lambda _: io.BytesIO(b"abc"), lambda x: x.getvalue())
kind("standard output", "sys", lambda _: [sys.stdout, sys.stderr], lambda x: x[0].writable())
kind("logger", "logging", lambda m: m.getLogger("mine"), lambda x: x.isEnabledFor(10))
kind("logging handler", "logging", lambda m: m.StreamHandler(), lambda x: x.flush())
kind("lock", "threading", lambda m: [m.Lock(), m.RLock()], lambda x: x[0].locked())
kind("event and condition", "threading", lambda m: [m.Event(), m.Condition(), m.Semaphore(2)], lambda x: x[0].is_set())
kind("thread local", "threading", lambda _: threading.local(), lambda x: setattr(x, "handle", io.StringIO()))
kind("lock of processes", "multiprocessing", lambda m: m.Lock(), lambda x: x.acquire() and x.release())
kind("open file", "io", lambda m: m.FileIO(__file__), lambda x: (x.read(3), x.seek(0)))
kind("open text file", "pathlib", lambda m: m.Path(__file__).open(), lambda x: (x.read(3), x.seek(0)))
kind("path", "pathlib", lambda m: m.Path("/data/x"), lambda x: (x.parent, x.parts, str(x), hash(x)))
kind("decimal", "decimal", lambda m: m.Decimal("1.5"), lambda x: x + 1)
kind("datetime", "datetime", lambda m: m.datetime(2020, 1, 1, tzinfo=m.timezone.utc), lambda x: hash(x))
kind("random.Random", "random", lambda m: m.Random(3), lambda x: x.random())
kind("lru_cache", "functools", lambda m: m.lru_cache(len), lambda x: x("abc"))
kind("single dispatch", "functools", lambda m: m.singledispatch(len), lambda x: x("abc"))
kind("weak references", "weakref", lambda m: [s := {1, 2}, m.ref(s), m.WeakValueDictionary({"a": s})])
kind("chain map", "collections", lambda m: m.ChainMap({"a": 1}, {"b": 2}), lambda x: x["b"])
kind("configparser", "configparser", lambda m: _read_config(m), lambda x: x["a"]["b"])


def _read_config(module: Any) -> Any:
    parser = module.ConfigParser()
    parser.read_string("[a]\nb = 1")
    return parser


# --- numpy and its neighbours ---------------------------------------------------------------------------------------

kind("array", "numpy", lambda m: m.arange(100), lambda x: x.sum())
kind("array of words", "numpy", lambda m: m.array(WORDS), lambda x: x == "a")
kind("masked array", "numpy", lambda m: m.ma.array([1, 2], mask=[0, 1]), lambda x: x.mean())
kind("numpy Generator", "numpy", lambda m: m.random.default_rng(3), lambda x: x.random())
kind("mapped array", "numpy", lambda m: m.memmap(__file__, np.uint8, "r"), lambda x: x[:3].sum())
kind("data frame", "pandas", lambda m: m.DataFrame({"a": [1, 2], "b": ["x", "y"]}), lambda x: (x.loc[1], x["a"].sum()))
kind("index", "pandas", lambda m: m.Index(WORDS), lambda x: (x.get_loc("word3"), x.is_unique, "a" in x))
kind("categories", "pandas", lambda m: m.Categorical(["a", "b"]), lambda x: x.describe())
kind(
    "sparse matrix", "scipy.sparse", lambda m: m.csr_matrix(np.eye(4)), lambda x: (x[1], x.sum(), x.has_sorted_indices)
)
kind("tree", "scipy.spatial", lambda m: m.cKDTree(np.eye(4)), lambda x: x.query(np.ones(4)))
kind("data array", "xarray", lambda m: m.DataArray(np.eye(3), dims=("a", "b")), lambda x: x.sel(a=1).mean().values)
kind("dataset of arrays", "xarray", lambda m: m.Dataset({"t": ("x", np.arange(3.0))}), lambda x: x.t.mean().values)
kind(
    "arrow table",
    "pyarrow",
    lambda m: m.table({"a": [1, 2], "b": ["x", "y"]}),
    lambda x: (x[0], x.slice(1).to_pylist()),
)
kind("image", "PIL.Image", lambda m: m.new("RGB", (8, 8)), lambda x: (x.getpixel((0, 0)), x.load(), x.resize((4, 4))))

# --- PyTorch ------------------------------------------------------------------------------------------------------

kind("tensor", "torch", lambda m: m.arange(12.0).reshape(3, 4), lambda x: x.t().contiguous())
kind("torch Generator", "torch", lambda m: m.Generator().manual_seed(3), lambda x: lit(2).normal_(generator=x))
kind("layer", "torch", lambda m: _constant(m.nn.Linear(2, 2)), lambda x: x(lit(1, 2)).sum().backward() or x.zero_grad())
kind("BatchNorm in training", "torch", lambda m: m.nn.BatchNorm1d(2), lambda x: x(lit(3, 2)))
kind("evaluated model", "torch", lambda m: m.nn.Sequential(m.nn.BatchNorm1d(2)).eval(), lambda x: x(lit(3, 2)))
kind("tensor dataset", "torch", lambda m: m.utils.data.TensorDataset(m.ones(3, 2)), lambda x: x[1])
kind("subset", "torch", lambda m: m.utils.data.Subset([5, 6, 7], [0, 2]), lambda x: x[1])
kind("concatenation", "torch", lambda m: m.utils.data.ConcatDataset([[1], [2, 3]]), lambda x: (x[2], len(x)))
kind("transforms", "torchvision.transforms", lambda m: _transforms(m), lambda x: x(_picture()))
kind("transforms v2", "torchvision.transforms.v2", lambda m: _transforms(m), lambda x: x(_picture()))
kind(
    "random choice v2",
    "torchvision.transforms.v2",
    lambda m: m.RandomApply([m.ColorJitter(0.3)]),
    lambda x: x(lit(3, 8, 8)),
)
kind("AutoAugment", "torchvision.transforms", lambda m: m.AutoAugment(), lambda x: x(_picture()))
kind("fake data", "torchvision.datasets", lambda m: m.FakeData(10), lambda x: x[1])


def _constant(module: Any) -> Any:
    for parameter in module.parameters():
        parameter.data.fill_(1.0)
    return module


def _transforms(module: Any) -> Any:
    steps = [module.RandomResizedCrop(8), module.RandomHorizontalFlip(), module.ToTensor(), module.RandomErasing()]
    return module.Compose(steps)


def _picture() -> Any:
    from PIL import Image

    return Image.new("RGB", (16, 16))


# --- augmentation ---------------------------------------------------------------------------------------------------


def _albumentations(module: Any) -> Any:
    steps = [module.RandomCrop(8, 8), module.HorizontalFlip(), module.OneOf([module.Rotate(), module.GaussNoise()])]
    return module.Compose(steps, bbox_params=module.BboxParams("coco", label_fields=["labels"]))


def _monai(module: Any) -> Any:
    return module.Compose([module.RandFlip(0.5), module.RandRotate90(0.5), module.RandGaussianNoise(0.5)])


def _monai_dict(module: Any) -> Any:
    return module.Compose([module.RandFlipd(["image"], 0.5), module.ScaleIntensityd(["image"])])


def _kornia(module: Any) -> Any:
    return module.AugmentationSequential(
        module.RandomHorizontalFlip(), module.ColorJitter(0.1), module.RandomRotation(9.0)
    )


kind("albumentations", "albumentations", _albumentations, lambda x: x(image=image(), bboxes=[], labels=[]))
kind(
    "albumentations with a seed", "albumentations", lambda m: m.Compose([m.Blur()], seed=3), lambda x: x(image=image())
)
kind("MONAI", "monai.transforms", _monai, lambda x: x(np.ones((1, 8, 8))))
kind("MONAI of dicts", "monai.transforms", _monai_dict, lambda x: x({"image": np.ones((1, 8, 8))}))
kind("MONAI dataset", "monai.data", lambda m: m.CacheDataset([1, 2], lambda x: x, progress=False), lambda x: x[1])
kind("kornia flip", "kornia.augmentation", lambda m: m.RandomHorizontalFlip(), lambda x: x(lit(2, 3, 8, 8)))
kind("kornia sequence", "kornia.augmentation", _kornia, lambda x: x(lit(2, 3, 8, 8)))

# --- configurations, texts ------------------------------------------------------------------------------------------


def _hydra(module: Any) -> Any:
    return module.OmegaConf.create({"data": {"size": 3, "path": "${root}/x", "tags": ["a"]}, "root": "/r"})


def _tokenizer(module: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return module.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def _hf(module: Any) -> Any:
    return module.Dataset.from_dict({"a": [1, 2, 3], "b": ["x", "y", "z"]}).with_format("numpy")


def _features(module: Any) -> Any:
    return module.Features({"a": module.Value("int64"), "b": module.ClassLabel(names=["x", "y"])})


kind("OmegaConf", "omegaconf", _hydra, lambda x: (x.data.path, x.data.size, dict(x)))
kind(
    "pydantic",
    "pydantic",
    lambda m: m.create_model("Config", size=(int, 3))(size=4),
    lambda x: (x.size, x.model_dump()),
)
kind("attrs", "attr", lambda m: m.make_class("C", ["x", "y"])(1, 2), lambda x: (x.x, repr(x)))
kind("argparse", "argparse", lambda m: m.Namespace(lr=0.1, size=3), lambda x: x.size)
kind("tokenizer", "transformers", _tokenizer, lambda x: x(["a b", "a"], padding=True, truncation=True, max_length=2))
kind("bare tokenizer", "transformers", lambda m: _tokenizer(m).backend_tokenizer, lambda x: x.encode("a b"))
kind("Hugging Face dataset", "datasets", _hf, lambda x: (x[1], x[:2]))
kind("Hugging Face features", "datasets", _features, lambda x: x["b"].int2str(1))
kind("graph", "networkx", lambda m: m.path_graph(4), lambda x: (x.degree[1], x.adj, list(x.edges), x.nodes))


# --- comparison -----------------------------------------------------------------------------------------------------


def parts_of(name: str) -> dict[str, dict[str, str]] | str:
    """Returns the identity of an object before and after it is used, or what is missing for it."""
    from coprep._fingerprint import fingerprint
    from coprep._private import Private

    entry = CATALOGUE[name]
    try:
        module = importlib.import_module(entry.module)
    except ImportError:
        return f"{entry.module} is not installed"
    random.seed(0)
    np.random.seed(0)
    value = entry.make(module)
    identities = {}
    for state in ("new", "used"):
        private: list[Private] = []
        parts = fingerprint({"x": {"whole": value}}, private)
        parts += [(part, digest) for part, digest in fingerprint({"y": value}) if part.startswith("y")]
        identities[state] = {part: digest.hex() for part, digest in parts} | {p.path: p.reason for p in private}
        if state == "new" and entry.use is not None:
            entry.use(value)
    return identities


def all_parts(names: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in names:
        try:
            result[name] = parts_of(name)
        except Exception as error:
            result[name] = {"error": {"error": f"{type(error).__name__}: {error} in process {os.getpid()}"}}
    return result


def in_process(seed: int, names: list[str]) -> dict[str, Any]:
    """Returns the identities of these objects as a process with this hash seed finds them."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "NO_ALBUMENTATIONS_UPDATE": "1"}
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, __file__, "--write", file.name, *names]
        subprocess.run(command, check=True, env=environment, timeout=300)
        found: dict[str, Any] = json.loads(Path(file.name).read_text())
    return found


def differences(first: Any, second: Any) -> list[str]:
    """Returns the parts in which new and used objects of two processes differ."""
    states = [process[state] for process in (first, second) for state in sorted(process)]
    names = sorted({name for state in states for name in state})
    return [name for name in names if len({state.get(name) for state in states}) > 1]


def main() -> None:
    names = sys.argv[1:] or list(CATALOGUE)
    first, second = in_process(1, names), in_process(2, names)
    for name in names:
        if isinstance(first[name], str):
            print(f"{name}: {first[name]}")
            continue
        found = differences(first[name], second[name])
        print(
            f"{name}: {'equal' if not found else ', '.join(found)}{' as expected' if name in DIFFER and found else ''}"
        )
        texts = [t for state in first[name].values() for t in state.values() if " " in t]
        if texts:
            print("   ", *texts[:3], sep="\n    ")


if __name__ == "__main__":
    logging.disable()
    if sys.argv[1:2] == ["--write"]:
        Path(sys.argv[2]).write_text(json.dumps(all_parts(sys.argv[3:])))
    else:
        main()
