"""Datasets and transforms whose attributes and classes are set while the program runs."""

from __future__ import annotations

import collections
import functools
import importlib.util
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from state.kind import FOLDERS, Kind

# Attributes.


class Attribute(Kind):
    """dataset.size = n"""

    def __init__(self) -> None:
        self.size = 0

    def set(self, value: int) -> None:
        self.size = value

    def __getitem__(self, index: int) -> int:
        return self.size


class AttributeUnused(Kind):
    """dataset.run = n, which samples do not read"""

    counts = False

    def __init__(self) -> None:
        self.run = ""

    def set(self, value: int) -> None:
        self.run = f"runs/{value}"

    def __getitem__(self, index: int) -> int:
        return index


class AttributeByVars(Kind):
    """vars(dataset).update(...)"""

    def __init__(self) -> None:
        self.size = 0

    def set(self, value: int) -> None:
        vars(self).update(size=value, more=value)

    def __getitem__(self, index: int) -> int:
        return sum(number for number in vars(self).values())


class AttributeDeleted(Kind):
    """del dataset.size, below which is the class's"""

    values = (True, False)
    size = 0

    def __init__(self) -> None:
        self.size = 1

    def set(self, value: bool) -> None:
        if value:
            del self.size

    def __getitem__(self, index: int) -> int:
        return self.size


class KeysAttribute(Kind):
    """dict.keys() as an attribute, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.names = self.table.keys()

    def set(self, value: int) -> None:
        self.table[value] = 0

    def __getitem__(self, index: int) -> str:
        return str(list(self.names))


class ViewAttribute(Kind):
    """memoryview as an attribute, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.data = bytearray(4)
        self.view = memoryview(self.data)[2:]

    def set(self, value: int) -> None:
        self.data[3] = value

    def __getitem__(self, index: int) -> int:
        return self.view[1]


class ProxyAttribute(Kind):
    """types.MappingProxyType as an attribute, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.table = {"size": 0}
        self.proxy = types.MappingProxyType(self.table)

    def set(self, value: int) -> None:
        self.table["size"] = value

    def __getitem__(self, index: int) -> int:
        return self.proxy["size"]


class OutputAttribute(Kind):
    """sys.stdout as an attribute, which cannot be pickled"""

    alone = True
    counts = False

    def __init__(self) -> None:
        self.out: Any = None

    def set(self, value: int) -> None:
        self.out = sys.stdout

    def __getitem__(self, index: int) -> int:
        if self.out is not None:
            self.out.flush()
        return index


class ModuleAttribute(Kind):
    """a module as an attribute, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.module = types

    def set(self, value: int) -> None:
        self.module = types.ModuleType("made_up")
        self.module.SIZE = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        size: int = getattr(self.module, "SIZE", 0)
        return size


class LambdaAttribute(Kind):
    """a lambda as the transform of a dataset, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.transform: Callable[[int], int] = lambda index: 0

    def set(self, value: int) -> None:
        self.transform = lambda index: value

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


def scale_by(size: int) -> Callable[[int], int]:
    def scale(index: int) -> int:
        return size + index

    return scale


class ClosureAttribute(Kind):
    """a nested function as the transform of a dataset, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.transform = scale_by(0)

    def set(self, value: int) -> None:
        self.transform = scale_by(value)

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


class ClosureCellAttribute(Kind):
    """a variable of the nested function that is the transform of a dataset"""

    alone = True

    def __init__(self) -> None:
        self.transform = scale_by(0)

    def set(self, value: int) -> None:
        self.transform.__closure__[0].cell_contents = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


def scale(index: int, size: int = 0) -> int:
    return size + index


class PartialAttribute(Kind):
    """functools.partial as the transform of a dataset"""

    def __init__(self) -> None:
        self.transform = functools.partial(scale)

    def set(self, value: int) -> None:
        self.transform = functools.partial(scale, size=value)

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


def numbers(size: int) -> Iterator[int]:
    while True:
        yield size


class GeneratorAttribute(Kind):
    """a generator as an attribute, which cannot be pickled"""

    alone = True
    shares = False

    def __init__(self) -> None:
        self.numbers = numbers(0)

    def set(self, value: int) -> None:
        self.numbers = numbers(value)

    def __getitem__(self, index: int) -> int:
        return next(self.numbers)


class Target:
    def __init__(self) -> None:
        self.size = 0


class WeakAttribute(Kind):
    """weakref.ref as an attribute, which cannot be pickled"""

    alone = True

    def __init__(self) -> None:
        self.target = Target()
        self.reference = weakref.ref(self.target)

    def set(self, value: int) -> None:
        self.target.size = value

    def __getitem__(self, index: int) -> str:
        return str(getattr(self.reference(), "size", "gone"))


class MethodOfInstance(Kind):
    """dataset.load = f"""

    alone = True

    def load(self, index: int) -> int:
        return 0

    def set(self, value: int) -> None:
        self.load = lambda index: value  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> int:
        return self.load(index)


class CachedMethod(Kind):
    """an lru_cache of a method that has kept what was set before"""

    unseen = "the entries of an lru_cache cannot be listed"

    def __init__(self) -> None:
        self.size = 0

    @functools.cache  # noqa: B019
    def get(self) -> int:
        return self.size

    def set(self, value: int) -> None:
        self.size = value
        self.get()
        self.size = 0

    def __getitem__(self, index: int) -> int:
        return self.get()


class CachedProperty(Kind):
    """a cached_property that has kept what was set before"""

    def __init__(self) -> None:
        self.size = 0

    @functools.cached_property
    def kept(self) -> int:
        return self.size

    def set(self, value: int) -> None:
        self.size = value
        assert self.kept == value
        self.size = 0

    def __getitem__(self, index: int) -> int:
        return self.kept


class StateLeftOut(Kind):
    """an attribute that __getstate__ leaves out"""

    def __init__(self) -> None:
        self.size = 0

    def __getstate__(self) -> dict[str, int]:
        return {"size": 0}

    def set(self, value: int) -> None:
        self.size = value

    def __getitem__(self, index: int) -> int:
        return self.size


class Record:
    """Has no way to be copied."""

    def __init__(self) -> None:
        self.size = 0

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a record cannot be copied")


class NoCopy(Kind):
    """an attribute whose __deepcopy__ raises an error"""

    def __init__(self) -> None:
        self.record = Record()

    def set(self, value: int) -> None:
        self.record.size = value

    def __getitem__(self, index: int) -> int:
        return self.record.size


Pair = collections.namedtuple("Pair", ["size", "rest"])


class NestedAttribute(Kind):
    """an attribute in a tuple in a list in a dict"""

    def __init__(self) -> None:
        self.table = {"pairs": [Pair([0], 0)]}

    def set(self, value: int) -> None:
        self.table["pairs"][0].size[0] = value

    def __getitem__(self, index: int) -> int:
        size: int = self.table["pairs"][0].size[0]
        return size


class ClassOfDatasetReplaced(Kind):
    """dataset.__class__ = Other"""

    def set(self, value: int) -> None:
        self.__class__ = {3: ThreeOfClass, 5: FiveOfClass}[value]

    def __getitem__(self, index: int) -> int:
        return 0


class ThreeOfClass(ClassOfDatasetReplaced):
    def __getitem__(self, index: int) -> int:
        return 3


class FiveOfClass(ClassOfDatasetReplaced):
    def __getitem__(self, index: int) -> int:
        return 5


# Datasets of other forms.


class Inner:
    def __init__(self) -> None:
        self.size = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.size


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index] + self.size


class Wrapped(Kind):
    """a wrapper with __getattr__, whose inner dataset is changed"""

    # Pickle asks for an attribute before the inner dataset is there, which never ends.
    alone = True
    loads = False

    def __init__(self) -> None:
        self.inner = Inner()

    def dataset(self) -> Any:
        return Wrapper(self.inner)

    def set(self, value: int) -> None:
        self.inner.size = value


class PlainList(Kind):
    """a list as the dataset, changed in place"""

    def __init__(self) -> None:
        self.items = [0, 1, 2, 3]

    def dataset(self) -> Any:
        return self.items

    def set(self, value: int) -> None:
        self.items[:] = [value, value + 1, value + 2, value + 3]


class SlottedData:
    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.size


class SlottedDataset(Kind):
    """a dataset with __slots__"""

    def __init__(self) -> None:
        self.data = SlottedData()

    def dataset(self) -> Any:
        return self.data

    def set(self, value: int) -> None:
        self.data.size = value


class ManyAtOnce:
    def __init__(self) -> None:
        self.size = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.size

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self.size + 1 for _ in indices]


class AskedForMany(Kind):
    """a dataset with __getitems__"""

    def __init__(self) -> None:
        self.data = ManyAtOnce()

    def dataset(self) -> Any:
        return self.data

    def set(self, value: int) -> None:
        self.data.size = value


class LocalClass(Kind):
    """a class in a function"""

    alone = True

    def __init__(self) -> None:
        class Local(Inner):
            pass

        self.local = Local()

    def dataset(self) -> Any:
        return self.local

    def set(self, value: int) -> None:
        self.local.size = value


class LocalClassAttribute(Kind):
    """an attribute of a class in a function"""

    alone = True

    def __init__(self) -> None:
        class Local(Inner):
            more = 0

            def __getitem__(self, index: int) -> int:
                return self.more

        self.local = Local

    def dataset(self) -> Any:
        return self.local()

    def set(self, value: int) -> None:
        self.local.more = value


class ClassByType(Kind):
    """a class made by type()"""

    alone = True

    def __init__(self) -> None:
        self.made = type("Made", (Inner,), {"__getitem__": lambda self, index: self.size + 1})()

    def dataset(self) -> Any:
        return self.made

    def set(self, value: int) -> None:
        self.made.size = value


class ClassOfModuleByPath(Kind):
    """a class of a module that was loaded by its path"""

    alone = True
    loads = False

    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location("loaded_by_path", FOLDERS[3] / "extra.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules["loaded_by_path"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.data = module.Data()

    def dataset(self) -> Any:
        return self.data

    def set(self, value: int) -> None:
        self.data.size = value * 10


class ClassOfModuleMade(Kind):
    """a class of a module that this process has made"""

    alone = True
    loads = False

    def __init__(self) -> None:
        module = sys.modules["only_here"] = types.ModuleType("only_here")
        exec("class Data:\n def __len__(self): return 4\n def __getitem__(self, index): return SIZE", vars(module))
        self.module = module
        module.SIZE = 0  # type: ignore[attr-defined]

    def dataset(self) -> Any:
        return self.module.Data()

    def set(self, value: int) -> None:
        self.module.SIZE = value  # type: ignore[attr-defined]


class ClassOfRemovedFolder(Kind):
    """a class of a module whose folder is no longer in sys.path"""

    alone = True
    loads = False

    def __init__(self) -> None:
        sys.path.insert(0, str(FOLDERS[3]))
        import extra

        del sys.path[0]
        self.data = extra.Data()

    def dataset(self) -> Any:
        return self.data

    def set(self, value: int) -> None:
        self.data.size = value * 10
