"""Who may import whom: read from the source, and from what a fresh interpreter has loaded."""

import ast
import pydoc
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import adagp

ROOT = Path(adagp.__file__).parent
HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "matplotlib",
    "tensorboard",
    "jinja2",
    "vl_convert",
    "transformers",
    "lightning",
    "accelerate",
    "wandb",
    "mlflow",
    "amaranth",
)

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_version": set(),
    "core": {"_version"},
    "layers": {"core"},
    "schedules": {"core"},
    "sources": {"core", "layers"},
    "engine": {"core", "layers", "schedules", "sources"},
    "models": {"core", "layers"},
    "data": {"core", "models"},
    "integrations": {"core", "engine", "models"},
    "hw": {"core", "schedules"},
    "pipe": {"core", "hw", "schedules"},
    "rtl": {"core", "hw"},
    "tracing": {"core", "hw", "layers", "models"},
}
"""The packages that each package may import, besides itself and `errors`."""

FREE = {"program", "papers", "cli", "__main__"}
"""Packages that put others together."""

TORCH_FREE = ("adagp.core", "adagp.schedules", "adagp.program.run", "adagp.hw", "adagp.pipe", "adagp.rtl")
"""Packages none of whose files imports torch, not even inside a function."""

NOT_CORE = ("papers", "cli", "__main__")
"""Everything else is the core, which names no paper."""


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def import_statements(
    node: ast.AST, *, everywhere: bool, for_types: bool = False
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports below `node`; those inside functions if `everywhere`, those of type checkers if `for_types`."""
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif (for_types or not is_type_checking(child)) and (everywhere or not inside):
            yield from import_statements(child, everywhere=everywhere, for_types=for_types)


@cache
def sources() -> dict[str, Path]:
    """Return every module of adagp by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("adagp", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def targets(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the modules that a statement imports; `from package import module` is an import of the module."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    assert statement.level == 0, "imports are written in full"
    assert statement.module is not None
    names = {f"{statement.module}.{alias.name}" for alias in statement.names}
    modules = names & sources().keys()
    return modules | ({statement.module} if modules != names else set())


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text("utf-8"))


@cache
def imports(module: str, *, everywhere: bool, for_types: bool = False) -> frozenset[str]:
    statements = import_statements(tree(module), everywhere=everywhere, for_types=for_types)
    return frozenset().union(*map(targets, statements))


def package(module: str) -> str:
    """Return the top-level package (or module) that a module belongs to; '' for adagp itself."""
    return module.split(".")[1] if "." in module else ""


def own(modules: frozenset[str]) -> set[str]:
    return {name for name in modules if name == "adagp" or name.startswith("adagp.")}


MODULES = sorted(sources())


def test_the_source_was_found() -> None:
    assert {"adagp", "adagp.errors", "adagp.schedules.ladder", "adagp.engine.trainer", "adagp.cli.train"} <= set(
        MODULES
    )
    assert "adagp.schedules.text" in imports("adagp.schedules", everywhere=False)
    assert "adagp.program.train.session" in imports("adagp.cli.train", everywhere=True)
    assert "adagp.program.train.session" not in imports("adagp.cli.train", everywhere=False)


def test_packages_import_only_what_they_may() -> None:
    wrong = []
    for module in MODULES:
        here = package(module)
        named = {package(name) for name in own(imports(module, everywhere=True))} - {here, "", "errors"}
        allowed = set(MODULES) if here in FREE or here == "" else ALLOWED[here]
        wrong += [f"{module} imports {name}" for name in sorted(named - allowed) if here not in FREE and here]
        if "cli" in named and here not in ("cli", "__main__"):
            wrong.append(f"{module} imports the command line")
    assert wrong == []


def test_the_core_imports_no_paper() -> None:
    """Papers register themselves; the package itself names their public classes, which it imports on first use."""
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if package(module) not in ("", *NOT_CORE)
        for name in sorted(own(imports(module, everywhere=True, for_types=True)))
        if package(name) == "papers"
    ]
    assert wrong == []


def test_torch_free_packages_do_not_import_torch() -> None:
    wrong = [
        module
        for module in MODULES
        if module.startswith(TORCH_FREE)
        and {name.split(".")[0] for name in imports(module, everywhere=True)} & {"torch", "torchvision", "timm"}
    ]
    assert wrong == []


def test_importing_papers_loads_nothing_heavy_of_them() -> None:
    """A paper's `__init__` is imported whenever a table is read."""
    for module in MODULES:
        if module.startswith("adagp.papers") and sources()[module].name == "__init__.py":
            assert {package(name) for name in own(imports(module, everywhere=False))} <= {"core", "models", "papers"}, (
                module
            )


def test_only_one_module_imports_torchvision_and_timm() -> None:
    named = {
        module
        for module in MODULES
        if {name.split(".")[0] for name in imports(module, everywhere=True)} & {"torchvision", "timm"}
    }
    assert named <= {"adagp.models.vision"}


def test_only_two_modules_import_transformers() -> None:
    named = {
        name for name in MODULES if "transformers" in {one.split(".")[0] for one in imports(name, everywhere=True)}
    }
    assert named <= {"adagp.models.huggingface", "adagp.integrations.transformers"}


def test_accelerator_model_and_training_do_not_import_each_other() -> None:
    """Outside the packages that put others together, no module reaches both, however indirectly."""

    def reach(module: str) -> set[str]:
        seen, left = set(), [module]
        while left:
            name = left.pop()
            if name in sources() and name not in seen:
                seen.add(name)
                left += own(imports(name, everywhere=True)) - {"adagp"}
        return {package(name) for name in seen}

    assert {"engine", "sources", "core"} <= reach("adagp.program.train.session")
    meeting = [name for name in MODULES if {"hw", "engine"} <= reach(name) and package(name) not in (*FREE, "")]
    assert meeting == []


@pytest.mark.medium
def test_no_import_cycles() -> None:
    """The package itself, which names its public classes to type checkers, is left out."""
    graph = {
        module: own(imports(module, everywhere=False, for_types=True)) & sources().keys() - {"adagp"}
        for module in MODULES
        if module != "adagp"
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")
    assert order.index("adagp.errors") < order.index("adagp.core.registry")


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.fixture(scope="session")
def loaded_after(python: Callable[..., Any]) -> Callable[[str], set[str]]:
    """Return a function that returns the heavy packages that a fresh interpreter has loaded after a statement."""

    def run(statement: str) -> set[str]:
        done = python("-c", f"import sys; {statement}; print(*(name for name in {HEAVY!r} if name in sys.modules))")
        assert done.stderr == ""
        return set(done.stdout.split())

    return run


@pytest.mark.medium
@pytest.mark.parametrize(
    "package",
    [
        "adagp",
        "adagp.schedules",
        "adagp.program.run",
        "adagp.data",
        "adagp.models",
        "adagp.cli",
        "adagp.hw",
        "adagp.pipe",
        "adagp.program.report.page",
    ],
)
def test_imports_load_nothing_heavy(package: str, loaded_after: Callable[[str], set[str]]) -> None:
    if package not in sources():
        pytest.skip(f"there is no {package}")
    assert loaded_after(f"import {package}") == set()


@pytest.mark.medium
def test_training_loads_torch_alone(loaded_after: Callable[[str], set[str]]) -> None:
    assert loaded_after("import adagp.program.train.session") == {"torch"}


@pytest.mark.medium
def test_public_names_are_imported_lazily(loaded_after: Callable[[str], set[str]]) -> None:
    assert loaded_after("import adagp; adagp.Ladder, adagp.parse_schedule, adagp.Plan") == set()
    for name in dir(adagp):
        assert getattr(adagp, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'adagp' has no attribute 'ladder'$"):
        adagp.ladder  # type: ignore[attr-defined]  # noqa: B018  # looking it up is the test: mypy must reject it, too


def test_public_names_are_listed_for_tab_completion() -> None:
    assert dir(adagp) == sorted([*adagp._HOMES, "__version__"])
    for_types = next(node for node in tree("adagp").body if is_type_checking(node))
    imported = {
        alias.name: node.module
        for node in ast.walk(for_types)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == adagp._HOMES, "type checkers see the same names"
    listed = next(node.value for node in ast.walk(for_types) if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(listed)) == dir(adagp)


def test_help_shows_how_to_begin_and_every_public_name() -> None:
    text = pydoc.plain(pydoc.render_doc(adagp))
    assert 'adagp.attach(model, optimizer, method="feedback"' in text
    assert len(text.splitlines()) <= 90, "a few screens"
    for name in adagp._HOMES:
        assert re.search(rf"\b{name}\b", text), name
