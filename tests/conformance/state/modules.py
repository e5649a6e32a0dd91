"""What a program sets in its own modules: variables, classes, functions and registries."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import ctypes
import enum
import functools
import importlib
import importlib.util
import inspect
import itertools
import operator
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from state import program
from state.kind import FOLDERS, Kind, attempt
from state.program import config, helpers, registry
from state.program.config import DEPTH

# Variables of a configuration.


class ModuleVariable(Kind):
    """config.SIZE = n"""

    def set(self, value: int) -> None:
        config.SIZE = value

    def __getitem__(self, index: int) -> int:
        return config.SIZE


class ModuleVariableUnused(Kind):
    """config.LEARNING_RATE = n, which samples do not read"""

    counts = False

    def set(self, value: int) -> None:
        config.LEARNING_RATE = value

    def __getitem__(self, index: int) -> int:
        return config.SIZE


class ModuleVariableByName(Kind):
    """config.DEPTH = n, after `from config import DEPTH`"""

    counts = False

    def set(self, value: int) -> None:
        config.DEPTH = value

    def __getitem__(self, index: int) -> int:
        return DEPTH


class ModuleVariableBySetattr(Kind):
    """setattr(config, name, n) and getattr"""

    name = "SIZE"

    def set(self, value: int) -> None:
        setattr(config, self.name, value)

    def __getitem__(self, index: int) -> int:
        size: int = getattr(config, self.name)
        return size


class ModuleVariableDeleted(Kind):
    """del config.SIZE"""

    values = (True, False)

    def set(self, value: bool) -> None:
        if value:
            del config.SIZE

    def __getitem__(self, index: int) -> str:
        return "there" if hasattr(config, "SIZE") else "gone"


class ModuleVariableNew(Kind):
    """config.NEW = n, which the module does not have"""

    def set(self, value: int) -> None:
        config.NEW = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        return getattr(config, "NEW", 0)


class ModuleGetattr(Kind):
    """config.__getattr__ = f"""

    def set(self, value: int) -> None:
        config.__getattr__ = lambda name: value  # type: ignore[assignment, misc]

    def __getitem__(self, index: int) -> int:
        return config.LAZY


OWN = 0


class GlobalStatement(Kind):
    """global SIZE; SIZE = n in the dataset's module"""

    def set(self, value: int) -> None:
        global OWN
        OWN = value

    def __getitem__(self, index: int) -> int:
        return OWN


class ConfigNode(Kind):
    """cfg.merge_from_file(...) of a configuration as yacs has it"""

    def set(self, value: int) -> None:
        config.CFG.merge({"data": {"size": value}})

    def __getitem__(self, index: int) -> int:
        size: int = config.CFG.data.size
        return size


class ConfigNodeUnused(Kind):
    """cfg.merge_from_list(["solver.learning_rate", n])"""

    counts = False

    def set(self, value: int) -> None:
        config.CFG.merge({"solver": {"learning_rate": value}})

    def __getitem__(self, index: int) -> int:
        size: int = config.CFG.data.size
        return size


class ParsedArguments(Kind):
    """args of argparse as a global variable"""

    def set(self, value: int) -> None:
        config.ARGS.size = value

    def __getitem__(self, index: int) -> int:
        size: int = config.ARGS.size
        return size


class ParsedArgumentsUnused(Kind):
    """args.learning_rate, args.seed and args.output, which samples do not read"""

    counts = False

    def set(self, value: int) -> None:
        config.ARGS.learning_rate = config.ARGS.seed = value
        config.ARGS.output = f"runs/{value}"

    def __getitem__(self, index: int) -> int:
        size: int = config.ARGS.size
        return size


class NestedDict(Kind):
    """CONFIG["augment"]["scale"] = n"""

    def set(self, value: int) -> None:
        config.TABLE["augment"]["scale"] = value

    def __getitem__(self, index: int) -> int:
        scale: int = config.TABLE["augment"]["scale"]
        return scale


class NestedDictUnused(Kind):
    """CONFIG["learning_rate"] = n, which samples do not read"""

    counts = False

    def set(self, value: int) -> None:
        config.TABLE["learning_rate"] = value

    def __getitem__(self, index: int) -> int:
        scale: int = config.TABLE["augment"]["scale"]
        return scale


class GlobalList(Kind):
    """SIZES.append(n)"""

    def set(self, value: int) -> None:
        config.SIZES.append(value)

    def __getitem__(self, index: int) -> int:
        return sum(config.SIZES)


class Initialised(Kind):
    """config.init(cfg), without which a global variable is None"""

    def set(self, value: int) -> None:
        config.init(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: config.STATE["size"])  # type: ignore[index]


class DataclassDefault(Kind):
    """Options.size = n, the default of a dataclass"""

    def set(self, value: int) -> None:
        config.Options.size = value

    def __getitem__(self, index: int) -> int:
        return config.Options.size


class DataclassInstance(Kind):
    """OPTIONS.size = n of a dataclass"""

    def set(self, value: int) -> None:
        config.OPTIONS.size = value

    def __getitem__(self, index: int) -> int:
        return config.OPTIONS.size


class EnumExtended(Kind):
    """a member added to an enumeration"""

    def set(self, value: int) -> None:
        member = object.__new__(config.Color)
        member._name_, member._value_ = "STATE", value
        config.Color._member_map_["STATE"] = member
        config.Color._value2member_map_[value] = member

    def __getitem__(self, index: int) -> str:
        return str([name for name, member in config.Color.__members__.items() for _ in range(member.value)])


# Classes.


class Sized(Kind):
    """Dataset.SIZE = n"""

    SIZE = 0

    def set(self, value: int) -> None:
        Sized.SIZE = value

    def __getitem__(self, index: int) -> int:
        return self.SIZE


class ClassAttributeUnused(Kind):
    """Dataset.RUN = n, which samples do not read"""

    counts = False
    RUN = 0

    def set(self, value: int) -> None:
        ClassAttributeUnused.RUN = value

    def __getitem__(self, index: int) -> int:
        return index


class BaseAttribute(Kind):
    """Base.size = n of a class that another derives from"""

    def set(self, value: int) -> None:
        registry.Base.size = value

    def __getitem__(self, index: int) -> int:
        class Derived(registry.Base):
            pass

        return Derived.size


class MethodPatched(Kind):
    """Reader.read = f"""

    def set(self, value: int) -> None:
        helpers.Reader.read = lambda self, index: value  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> int:
        return helpers.Reader().read(index)


class MethodUnused(Kind):
    """Reader.unused = f, which samples do not call"""

    counts = False

    def set(self, value: int) -> None:
        helpers.Reader.unused = lambda self: value  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> int:
        return helpers.Reader().read(index)


class GetitemPatched(Kind):
    """Dataset.__getitem__ = f"""

    def set(self, value: int) -> None:
        GetitemPatched.__getitem__ = lambda self, index: value  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> int:
        return 0


class PropertyReplaced(Kind):
    """Reader.area = property(f)"""

    def set(self, value: int) -> None:
        helpers.Reader.area = property(lambda self: value)  # type: ignore[method-assign, assignment, misc]

    def __getitem__(self, index: int) -> int:
        return helpers.Reader().area


class StaticMethodReplaced(Kind):
    """Reader.static = staticmethod(f)"""

    def set(self, value: int) -> None:
        helpers.Reader.static = staticmethod(lambda index: value)  # type: ignore[method-assign, assignment]

    def __getitem__(self, index: int) -> int:
        return helpers.Reader.static(index)


class ReadByClassMethod(Kind):
    """Reader.size = n, which a class method reads"""

    def set(self, value: int) -> None:
        helpers.Reader.size = value

    def __getitem__(self, index: int) -> int:
        return helpers.Reader.of_class()


class MetaclassAttribute(Kind):
    """an attribute of a metaclass"""

    def set(self, value: int) -> None:
        helpers.Meta.size = value

    def __getitem__(self, index: int) -> int:
        return helpers.WithMeta.area()


class DescriptorState(Kind):
    """an attribute of a descriptor"""

    def set(self, value: int) -> None:
        vars(helpers.WithDescriptor)["size"].size = value

    def __getitem__(self, index: int) -> int:
        size: int = helpers.WithDescriptor().size
        return size


class BasesReplaced(Kind):
    """Dataset.__bases__ = (Mixin,)"""

    def set(self, value: int) -> None:
        helpers.Mixed.__bases__ = ({3: helpers.MixinThree, 5: helpers.MixinFive}[value],)

    def __getitem__(self, index: int) -> int:
        return helpers.Mixed().area()


MIXED = helpers.MixinThree()


class ClassOfObjectReplaced(Kind):
    """OBJECT.__class__ = Other"""

    def set(self, value: int) -> None:
        MIXED.__class__ = {3: helpers.Mixin, 5: helpers.MixinFive}[value]  # type: ignore[assignment]

    def __getitem__(self, index: int) -> int:
        return MIXED.area()


class AbstractRegistered(Kind):
    """Shape.register(Circle)"""

    unseen = "the registry of an abstract class is not looked at"
    values = (helpers.Circle, helpers.Square)

    def set(self, value: type) -> None:
        helpers.Shape.register(value)

    def __getitem__(self, index: int) -> str:
        return str([issubclass(helpers.Circle, helpers.Shape), issubclass(helpers.Square, helpers.Shape)])


# Functions.


class FunctionPatched(Kind):
    """helpers.load = f"""

    def set(self, value: int) -> None:
        helpers.load = helpers.LOADS[value]

    def __getitem__(self, index: int) -> int:
        return helpers.load(index)


class FunctionPatchedByLambda(Kind):
    """helpers.load = lambda index: n"""

    def set(self, value: int) -> None:
        helpers.load = lambda index: value

    def __getitem__(self, index: int) -> int:
        return helpers.load(index)


class LambdaGlobal(Kind):
    """a lambda as a global variable"""

    def set(self, value: int) -> None:
        helpers.compute = lambda index: value

    def __getitem__(self, index: int) -> int:
        return helpers.compute(index)


class FunctionDefaults(Kind):
    """f.__defaults__ = (n,)"""

    def set(self, value: int) -> None:
        helpers.with_default.__defaults__ = (value,)

    def __getitem__(self, index: int) -> int:
        return helpers.with_default(index)


class FunctionKeywordDefaults(Kind):
    """f.__kwdefaults__ = {...}"""

    def set(self, value: int) -> None:
        helpers.with_keyword.__kwdefaults__ = {"size": value}

    def __getitem__(self, index: int) -> int:
        return helpers.with_keyword(index)


class FunctionCode(Kind):
    """f.__code__ = other.__code__"""

    def set(self, value: int) -> None:
        helpers.load_replaced.__code__ = helpers.LOADS[value].__code__

    def __getitem__(self, index: int) -> int:
        return helpers.load_replaced(index)


class FunctionAttribute(Kind):
    """f.size = n"""

    def set(self, value: int) -> None:
        helpers.with_attribute.size = value  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> int:
        return helpers.with_attribute(index)


class ClosureCell(Kind):
    """f.__closure__[0].cell_contents = n"""

    def set(self, value: int) -> None:
        helpers.get_enclosed.__closure__[0].cell_contents = value  # type: ignore[index]

    def __getitem__(self, index: int) -> int:
        return helpers.get_enclosed(index)


class ClosureNonlocal(Kind):
    """a variable that another closure changes by `nonlocal`"""

    def set(self, value: int) -> None:
        helpers.change_enclosed(value)

    def __getitem__(self, index: int) -> int:
        return helpers.get_enclosed(index)


class PartialGlobal(Kind):
    """functools.partial as a global variable"""

    def set(self, value: int) -> None:
        helpers.scaled = functools.partial(helpers.with_default, size=value)

    def __getitem__(self, index: int) -> int:
        return helpers.scaled(index)


class CacheOfOldValue(Kind):
    """an lru_cache that has kept what was set before"""

    unseen = "the entries of an lru_cache cannot be listed"

    def set(self, value: int) -> None:
        config.SIZE = value
        helpers.cached_size()
        config.SIZE = 0

    def __getitem__(self, index: int) -> int:
        return helpers.cached_size()


class CacheFilled(Kind):
    """an lru_cache with other entries"""

    counts = False

    def set(self, value: int) -> None:
        helpers.square(value)

    def __getitem__(self, index: int) -> int:
        return helpers.square(index)


class CacheCleared(Kind):
    """f.cache_clear() after config.SIZE = n"""

    def set(self, value: int) -> None:
        helpers.cached_size()
        config.SIZE = value
        helpers.cached_size.cache_clear()

    def __getitem__(self, index: int) -> int:
        return helpers.cached_size()


class SingleDispatch(Kind):
    """f.register(int, g) of functools.singledispatch"""

    values = ("three", "five")

    def set(self, value: str) -> None:
        helpers.describe.register(int, lambda what: value)

    def __getitem__(self, index: int) -> str:
        return helpers.describe(index)


class ReadByDecorator(Kind):
    """config.SIZE = n, which a decorator reads"""

    def set(self, value: int) -> None:
        config.SIZE = value

    def __getitem__(self, index: int) -> int:
        return helpers.decorated(index)


GETTER = operator.attrgetter("SIZE.bit_length")


class AttributeGetter(Kind):
    """operator.attrgetter as a global variable"""

    values = ("__name__", "ARGS.output")

    def set(self, value: str) -> None:
        global GETTER
        GETTER = operator.attrgetter(value)

    def __getitem__(self, index: int) -> str:
        return str(GETTER(config)).split(" at ")[0]


PATTERN = re.compile("0")


class PatternGlobal(Kind):
    """re.compile(...) as a global variable"""

    values = ("3", "5")

    def set(self, value: str) -> None:
        global PATTERN
        PATTERN = re.compile(value)

    def __getitem__(self, index: int) -> str:
        return PATTERN.sub("x", "0123456")


def from_text(index: int) -> int:
    return 0


class ExecutedCode(Kind):
    """exec(text, globals())"""

    def set(self, value: int) -> None:
        exec(f"def from_text(index): return {value}", globals())

    def __getitem__(self, index: int) -> int:
        return from_text(index)


BOUND: Callable[[int], int] = helpers.Reader().read


class Sizes:
    def __init__(self, size: int) -> None:
        self.size = size

    def get(self, index: int) -> int:
        return self.size


class BoundMethodGlobal(Kind):
    """a bound method as a global variable"""

    def set(self, value: int) -> None:
        global BOUND
        BOUND = Sizes(value).get

    def __getitem__(self, index: int) -> int:
        return BOUND(index)


# Registries and modules.


class RegistryByPlugin(Kind):
    """registry["x"] = f by importing a plug-in"""

    def set(self, value: int) -> None:
        importlib.import_module({3: "state.program.plugin_three", 5: "state.program.plugin_five"}[value])

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: registry.LOADERS["plugin"](index))


class RegistryBySubclass(Kind):
    """__init_subclass__ by importing a plug-in"""

    def set(self, value: int) -> None:
        importlib.import_module({3: "state.program.plugin_three", 5: "state.program.plugin_five"}[value])

    def __getitem__(self, index: int) -> str:
        return str([derived.size for derived in registry.Base.derived if derived.__name__ == "Plugin"])


class Subclasses(Kind):
    """Base.__subclasses__() after importing a plug-in"""

    def set(self, value: int) -> None:
        importlib.import_module({3: "state.program.plugin_three", 5: "state.program.plugin_five"}[value])

    def __getitem__(self, index: int) -> str:
        return str([derived.size for derived in registry.Base.__subclasses__() if derived.__name__ == "Plugin"])


class RegistryInPlace(Kind):
    """@register on a function of the script"""

    def set(self, value: int) -> None:
        registry.LOADERS["own"] = lambda index: value

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: registry.LOADERS["own"](index))


def loaded(value: int) -> types.ModuleType:
    """Returns the module `extra` of a folder, loaded by its path."""
    spec = importlib.util.spec_from_file_location("extra_by_path", FOLDERS[value] / "extra.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ModuleByPath(Kind):
    """a module that was loaded by its path, as a global variable"""

    def set(self, value: int) -> None:
        program.EXTRA = loaded(value)  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: program.EXTRA.SIZE)  # type: ignore[attr-defined]


class ModuleReplaced(Kind):
    """sys.modules["a.b"] = m, where samples import it"""

    def set(self, value: int) -> None:
        sys.modules["state.program.numbers"] = loaded(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: importlib.import_module("state.program.numbers").SIZE)


class ModuleAlias(Kind):
    """sys.modules["old_name"] = new, where samples import the old name"""

    values = (config, helpers)

    def set(self, value: types.ModuleType) -> None:
        sys.modules["state_alias"] = value

    def __getitem__(self, index: int) -> str:
        try:
            import state_alias
        except ImportError:
            return "none"
        return str(state_alias.__name__)


class SubmoduleReplaced(Kind):
    """package.module = m"""

    def set(self, value: int) -> None:
        program.config = loaded(value)  # type: ignore[assignment]

    def __getitem__(self, index: int) -> int:
        return program.config.SIZE


class ModuleReloaded(Kind):
    """importlib.reload(config), which sets all variables back"""

    counts = False

    def set(self, value: int) -> None:
        config.SIZE = value
        importlib.reload(config)

    def __getitem__(self, index: int) -> int:
        return config.SIZE


# Objects.


ENTERED = contextlib.ExitStack()


class ContextEntered(Kind):
    """a context of the program's own, entered around it"""

    def set(self, value: int) -> None:
        ENTERED.enter_context(helpers.Entered(value))

    def __getitem__(self, index: int) -> int:
        return helpers.Entered.current


def counting(size: int) -> Iterator[int]:
    while True:
        yield size


GENERATOR: Iterator[int] = counting(0)


class GeneratorGlobal(Kind):
    """a generator as a global variable"""

    # Nobody but its own frame can tell what a generator will yield.
    shares = False

    def set(self, value: int) -> None:
        global GENERATOR
        GENERATOR = counting(value)

    def __getitem__(self, index: int) -> int:
        return next(GENERATOR)


class GeneratorLocals(Kind):
    """the variables of a generator"""

    shares = False

    def set(self, value: int) -> None:
        global GENERATOR
        GENERATOR = counting(value)

    def __getitem__(self, index: int) -> str:
        return str(inspect.getgeneratorlocals(GENERATOR))  # type: ignore[arg-type]


ITERATOR = iter(range(10))


class IteratorPosition(Kind):
    """the position of an iterator"""

    def set(self, value: int) -> None:
        for _ in range(value):
            next(ITERATOR)

    def __getitem__(self, index: int) -> int:
        return next(copy.copy(ITERATOR))


COUNTER = itertools.count()


class CounterPosition(Kind):
    """the position of itertools.count()"""

    def set(self, value: int) -> None:
        for _ in range(value):
            next(COUNTER)

    def __getitem__(self, index: int) -> str:
        return repr(COUNTER)


KEPT = Sizes(0)
WEAK: weakref.ref[Sizes] = weakref.ref(KEPT)


class WeakReference(Kind):
    """an object behind a weak reference"""

    def set(self, value: int) -> None:
        KEPT.size = value

    def __getitem__(self, index: int) -> str:
        return str(getattr(WEAK(), "size", "gone"))


WEAK_VALUES: weakref.WeakValueDictionary[str, Sizes] = weakref.WeakValueDictionary()


class WeakValues(Kind):
    """an object in a WeakValueDictionary"""

    def set(self, value: int) -> None:
        self.kept = WEAK_VALUES["size"] = Sizes(value)

    def __getitem__(self, index: int) -> str:
        return attempt(lambda: WEAK_VALUES["size"].size)


CACHE: dict[str, int] = {}
LOCK = threading.Lock()


class FilledByThread(Kind):
    """a dict that a thread fills, which has ended"""

    def set(self, value: int) -> None:
        def fill() -> None:
            with LOCK:
                CACHE["size"] = value

        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()

    def __getitem__(self, index: int) -> int:
        with LOCK:
            return CACHE.get("size", 0)


BESIDE: dict[str, int] = {}


class FilledByRunningThread(Kind):
    """a dict that a thread has filled, which runs on"""

    def set(self, value: int) -> None:
        filled = threading.Event()

        def fill() -> None:
            BESIDE["size"] = value
            filled.set()
            threading.Event().wait()

        threading.Thread(target=fill, daemon=True).start()
        filled.wait()

    def __getitem__(self, index: int) -> int:
        return BESIDE.get("size", 0)


NUMBERS = np.zeros(3)


class GlobalArray(Kind):
    """a numpy array as a global variable, changed in place"""

    def set(self, value: int) -> None:
        NUMBERS[1:] = value

    def __getitem__(self, index: int) -> Any:
        return NUMBERS + index


class GlobalArrayView(Kind):
    """a view of an array, whose base is changed"""

    view = NUMBERS[2:]

    def set(self, value: int) -> None:
        NUMBERS[:] = value

    def __getitem__(self, index: int) -> Any:
        return self.view + index


C_NUMBER = ctypes.c_int(0)


class CtypesNumber(Kind):
    """ctypes.c_int as a global variable"""

    def set(self, value: int) -> None:
        C_NUMBER.value = value

    def __getitem__(self, index: int) -> int:
        return C_NUMBER.value


BYTES = bytearray(4)


class GlobalBytes(Kind):
    """a bytearray as a global variable"""

    def set(self, value: int) -> None:
        BYTES[2] = value

    def __getitem__(self, index: int) -> int:
        return sum(BYTES)


ARRAY = array.array("i", [0, 0])


class GlobalCompactArray(Kind):
    """array.array as a global variable"""

    def set(self, value: int) -> None:
        ARRAY[1] = value

    def __getitem__(self, index: int) -> int:
        return sum(ARRAY)


CHAIN = collections.ChainMap({}, {"size": 0})


class GlobalChain(Kind):
    """collections.ChainMap as a global variable"""

    def set(self, value: int) -> None:
        CHAIN["size"] = value

    def __getitem__(self, index: int) -> int:
        return CHAIN["size"]


FACTORY: collections.defaultdict[str, int] = collections.defaultdict(int)


class DefaultFactory(Kind):
    """defaultdict.default_factory = lambda: n"""

    def set(self, value: int) -> None:
        FACTORY.default_factory = lambda: value

    def __getitem__(self, index: int) -> int:
        factory = FACTORY.default_factory
        assert factory is not None
        return factory()


class Slots:
    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


SLOTS = Slots()


class SlotAttribute(Kind):
    """an attribute in __slots__"""

    def set(self, value: int) -> None:
        SLOTS.size = value

    def __getitem__(self, index: int) -> int:
        return SLOTS.size


ONE = [0]
OTHER = ONE


class TwoNames(Kind):
    """a list that is changed under its other name"""

    def set(self, value: int) -> None:
        OTHER[0] = value

    def __getitem__(self, index: int) -> int:
        return ONE[0]


class Flags(enum.Flag):
    ONE = 1
    TWO = 2
    FOUR = 4


FLAGS = Flags.TWO


class GlobalFlag(Kind):
    """a member of an enumeration as a global variable"""

    values = (Flags.ONE, Flags.FOUR | Flags.ONE)

    def set(self, value: Flags) -> None:
        global FLAGS
        FLAGS = value

    def __getitem__(self, index: int) -> int:
        value: int = FLAGS.value
        return value


NAMESPACE = types.SimpleNamespace(data=types.SimpleNamespace(size=0), run=types.SimpleNamespace(name=""))


class NamespaceHandedOn(Kind):
    """a configuration that a helper gets whole and reads a part of"""

    def set(self, value: int) -> None:
        NAMESPACE.data.size = value

    def __getitem__(self, index: int) -> int:
        return size_of(NAMESPACE)


class NamespaceHandedOnUnused(Kind):
    """the name of the run, in a configuration that a helper gets whole and reads a part of"""

    counts = False

    def set(self, value: int) -> None:
        NAMESPACE.run.name = f"run {value}"

    def __getitem__(self, index: int) -> int:
        return size_of(NAMESPACE)


def size_of(options: types.SimpleNamespace) -> int:
    size: int = options.data.size
    return size


class ProgressBar:
    """Stands for what a program keeps of its run: a progress bar, a writer, a tracker."""

    def __init__(self) -> None:
        self.steps = 0

    def update(self, steps: int) -> None:
        self.steps += steps


BAR = ProgressBar()


class ProgressBarUnused(Kind):
    """a progress bar as a global variable, which samples do not use"""

    counts = False

    def set(self, value: int) -> None:
        BAR.update(value)

    def train(self) -> None:
        BAR.update(1)

    def __getitem__(self, index: int) -> int:
        return index
