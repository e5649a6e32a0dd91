"""Tests the identity of objects that change by being used: pure caches do not count."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import coprep
import identity_catalogue
import numpy as np
import pytest
from coprep._fingerprint import fingerprint
from coprep._private import Private

Parts = dict[str, bytes]


def parts(value: Any) -> Parts:
    return dict(fingerprint({"x": value}))


def differing(before: Parts, after: Parts) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


class Named:
    """A class that defines its identity itself."""

    def __init__(self, name: Any, handle: Any = None) -> None:
        self.name = name
        self.handle = handle

    def __coprep_identity__(self) -> Any:
        return self.name


class NamedDict(dict[str, int]):
    def __coprep_identity__(self) -> Any:
        return sorted(self)


def test_a_class_says_what_identifies_its_instances() -> None:
    for wrap in (lambda x: x, lambda x: [[[[[x]]]]], lambda x: {"deep": [x]}):
        first = parts(wrap(Named("a", handle=(i for i in range(3)))))
        assert differing(first, parts(wrap(Named("a", handle=5)))) == []
        assert differing(first, parts(wrap(Named("b")))) == ["x"] if wrap(1) == 1 else True
        assert differing(first, parts(wrap(Named("b")))) != []
    assert differing(parts(NamedDict(a=1)), parts(NamedDict(a=2))) == []
    assert differing(parts(NamedDict(a=1)), parts(NamedDict(b=1))) == ["x"]


def test_instances_of_two_classes_that_say_the_same_differ() -> None:
    class Other(Named):
        pass

    assert differing(parts(Named("a")), parts(Other("a"))) != []


def test_code_of_a_class_that_says_what_identifies_it_counts() -> None:
    def made(number: int) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(f"class A:\n  def __coprep_identity__(self): return 1\n  def __getitem__(self, i): return {number}", scope)
        return scope["A"]()

    assert differing(parts(made(3)), parts(made(3))) == []
    assert differing(parts(made(3)), parts(made(4))) == ["code __main__"]


def test_an_object_whose_identity_fails_cannot_be_compared() -> None:
    class Broken:
        def __coprep_identity__(self) -> Any:
            raise ValueError("no name yet")

    class Endless:
        def __coprep_identity__(self) -> Any:
            return [self]

    found: list[Private] = []
    broken, endless = Broken(), Endless()
    assert differing(parts([broken]), parts([broken])) == []
    assert differing(parts([broken]), parts([Broken()])) == ["x[0]"]
    assert differing(parts(endless), parts(Endless())) == ["x"]
    fingerprint({"x": [broken, endless]}, found)
    assert found[0] == ("x[0]", "ValueError: no name yet") and found[1].path == "x[1]"


class Caching:
    def __init__(self, root: str) -> None:
        self.root = root
        self.up: Any = None

    @functools.cached_property
    def files(self) -> list[str]:
        return [f"{self.root}/{i}" for i in range(3)]


class CachingMore(Caching):
    @functools.cached_property
    def sizes(self) -> np.ndarray[Any, Any]:
        return np.arange(3)


class WithSlots:
    __slots__ = ("__dict__", "size")

    def __init__(self, size: int) -> None:
        self.size = size

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.size


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"deep": [[[[x]]]]}], ids=["itself", "within"])
def test_cached_properties_do_not_count(wrap: Any) -> None:
    for make, use, other in [
        (lambda: CachingMore("a"), lambda x: (x.files, x.sizes), CachingMore("b")),
        (lambda: WithSlots(1), lambda x: x.doubled, WithSlots(2)),
    ]:
        value = make()
        before = parts(wrap(value))
        use(value)
        assert differing(before, parts(wrap(value))) == []
        assert differing(before, parts(wrap(make()))) == []
        assert differing(before, parts(wrap(other))) != []


def test_attributes_beside_cached_properties_keep_their_parts() -> None:
    assert {"x.root", "x.up"} <= set(parts(Caching("a")))
    assert differing(parts(Caching("a")), parts(Caching("b"))) == ["x.root"]


def test_an_object_with_caches_may_lead_back_to_itself() -> None:
    def cyclic(root: str) -> Any:
        value = Caching("a")
        value.up = {"down": [Caching(root), value]}
        value.up["down"][0].up = value
        return value

    used = cyclic("a")
    assert used.files and used.up["down"][0].files
    assert differing(parts(used), parts(cyclic("a"))) == []
    assert differing(parts(used), parts(cyclic("b"))) != []


def test_functions_that_remember_results_count_without_them() -> None:
    class Data:
        def __init__(self) -> None:
            self.squared = functools.lru_cache(maxsize=8)(square)

    data = Data()
    before = parts(data)
    assert data.squared(3) == 9
    assert differing(before, parts(data)) == []


def square(x: int) -> int:
    return x * x


class Options:
    def __init__(self, size: int, lr: float) -> None:
        self.size, self.lr = size, lr


class Optional:
    """A map-style dataset that holds more options than it reads."""

    def __init__(self, size: int, lr: float, transform: Any = None) -> None:
        self.options, self.transform = Options(size, lr), transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return self.options.size if self.transform is None else self.transform(i)


def _augmented(size: int, lr: float, wrap: Any) -> Any:
    torch = pytest.importorskip("torch")

    class Augmentation(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.options = Options(size, lr)

        def forward(self, x: Any) -> Any:
            return x * self.options.size

    return Optional(3, lr, wrap(Augmentation()))


HOLDERS: dict[str, Any] = {
    "Subset": lambda data, _, size, lr: data.Subset(Optional(size, lr), [1, 0]),
    "random_split": lambda data, _, size, lr: data.Subset(data.Subset(Optional(size, lr), [1, 0]), [1]),
    "ConcatDataset": lambda data, _, size, lr: data.ConcatDataset([Optional(size, lr)] * 2),
    "StackDataset": lambda data, _, size, lr: data.StackDataset(Optional(size, lr), Optional(size, lr)),
    "Compose": lambda _, t, size, lr: _augmented(size, lr, lambda one: t.Compose([one, t.RandomCrop(3)])),
    "RandomApply": lambda _, t, size, lr: _augmented(size, lr, lambda one: t.RandomApply([one])),
    "v2.Compose": lambda _, t, size, lr: _augmented(size, lr, lambda one: t.v2.Compose([one, t.v2.RandomCrop(3)])),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_options_within_the_classes_of_pytorch_count_if_they_are_read(holder: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    transforms = pytest.importorskip("torchvision.transforms")
    pytest.importorskip("torchvision.transforms.v2")
    first, other_lr, other_size = (
        HOLDERS[holder](data, transforms, *given) for given in [(3, 1.0), (3, 2.0), (4, 1.0)]
    )
    assert differing(parts(first), parts(other_lr)) == []
    different = differing(parts(first), parts(other_size))
    assert different and all(name.endswith("options.size") for name in different)


def test_loggers_do_not_count() -> None:
    first, other = logging.getLogger("first"), logging.getLogger("other")
    assert differing(parts(first), parts(other)) == []
    assert differing(parts([first]), parts([other])) == []


def test_a_class_of_the_script_counts_the_same_after_it_was_pickled() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("class Inner:\n  def __init__(self): self.x = 1\nclass Data:\n  def __init__(self): self.i = Inner()", scope)
    nested = {"deep": [[[scope["Data"]()]]]}
    before = parts(nested)
    assert "__slotnames__" in vars(scope["Inner"]), "it was pickled"
    assert differing(before, parts(nested)) == []


# --- state that libraries keep ----------------------------------------------------------------------------------


def tokenizer(words: str = "a b c", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{word: 2 + i for i, word in enumerate(words.split())}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", **options
    )


def use(tok: Any) -> None:
    from transformers import DataCollatorWithPadding

    tok(["a b", "c"], padding=True, truncation=True, max_length=3)
    DataCollatorWithPadding(tok)([{"input_ids": [2, 3]}, {"input_ids": [2]}])
    assert tok.deprecation_warnings and tok.backend_tokenizer.padding, "it has changed"


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"deep": [[[[x]]]]}], ids=["itself", "within"])
def test_a_tokenizer_counts_by_what_it_is(wrap: Any) -> None:
    tok = tokenizer()
    before = parts(wrap(tok))
    use(tok)
    assert differing(before, parts(wrap(tok))) == []
    assert differing(before, parts(wrap(tokenizer()))) == []
    for other in (
        tokenizer("a b d"),
        tokenizer("b a c"),
        tokenizer(padding_side="left"),
        tokenizer(model_max_length=5),
        tokenizer(cls_token="[UNK]"),
    ):
        assert differing(before, parts(wrap(other))) != []
    other = tokenizer()
    other.add_tokens(["d"])
    assert differing(before, parts(wrap(other))) != []
    other = tokenizer()
    other.backend_tokenizer.normalizer = __import__("tokenizers").normalizers.Lowercase()
    assert differing(before, parts(wrap(other))) != []


def test_a_bare_tokenizer_counts_with_how_it_pads() -> None:
    # Only the user sets this one.
    first, other = tokenizer().backend_tokenizer, tokenizer().backend_tokenizer
    assert differing(parts(first), parts(other)) == []
    other.enable_truncation(3)
    assert differing(parts(first), parts(other)) == ["x"]


class Text:
    """A dataset of texts that are tokenized on access."""

    def __init__(self, tok: Any) -> None:
        self.tok = tok

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return dict(self.tok("a b c a"[: 1 + 2 * (i % 4)], truncation=True, max_length=3 + i % 2))


def test_a_tokenizer_in_use_stays_in_its_stream(socket_path: Path) -> None:
    pytest.importorskip("torch")
    tok = tokenizer()
    from transformers import DataCollatorWithPadding

    data = Text(tok)
    collate = DataCollatorWithPadding(tok)
    # A trial that starts later has a tokenizer that has not been used.
    late = coprep.DataLoader(Text(tokenizer()), 8, num_workers=1, collate_fn=len)
    with coprep.DataLoader(data, 8, num_workers=1, collate_fn=collate) as loader, late:
        streams = []
        for _ in range(3):
            for batch in loader:
                assert batch["input_ids"].shape[0] == 8
            streams.append(loader._native.attached()["stream"])
            assert data[3]["input_ids"]
        assert len(list(late)) == 5
        streams.append(late._native.attached()["stream"])
    assert len(set(streams)) == 1


def test_transforms_of_albumentations_count_without_their_generators() -> None:
    albumentations = pytest.importorskip("albumentations")

    def transform(size: int = 8, **options: Any) -> Any:
        flips = albumentations.OneOf([albumentations.HorizontalFlip(), albumentations.Rotate()])
        return albumentations.Compose([albumentations.RandomCrop(size, size), flips], **options)

    used = transform()
    used(image=np.zeros((16, 16, 3), np.uint8))
    assert differing(parts(used), parts(transform())) == []
    assert differing(parts(used), parts(transform(9))) != []
    assert differing(parts(transform(seed=1)), parts(transform(seed=2))) != []


class Flip:
    __module__ = "albumentations.stand_in"

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.random_generator = np.random.default_rng(seed)
        self.params: dict[str, Any] = {}


def test_generators_of_albumentations_do_not_count() -> None:
    first, other = Flip(None), Flip(None)
    other.params["angle"] = first.random_generator.random()
    assert differing(parts(first), parts(other)) == []
    assert differing(parts(first), parts(Flip(3))) == ["x.seed"]


# --- in two processes -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def identities() -> list[dict[str, Any]]:
    """The identities of a catalogue of objects, new and used, in two processes with different hash seeds."""
    return [identity_catalogue.in_process(seed, list(identity_catalogue.CATALOGUE)) for seed in (1, 2)]


@pytest.mark.parametrize("kind", identity_catalogue.CATALOGUE)
def test_equal_objects_of_two_processes_are_equal_used_or_not(kind: str, identities: list[dict[str, Any]]) -> None:
    first, second = (found[kind] for found in identities)
    if isinstance(first, str):
        pytest.skip(first)
    texts = [text for state in first.values() for text in state.values() if " " in text]
    assert texts == [], "it can be compared"
    assert bool(identity_catalogue.differences(first, second)) == (kind in identity_catalogue.DIFFER)


@pytest.mark.parametrize("kind", identity_catalogue.DIFFER)
def test_objects_that_differ_are_in_the_catalogue(kind: str) -> None:
    assert identity_catalogue.DIFFER[kind] and kind in identity_catalogue.CATALOGUE
