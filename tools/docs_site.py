"""Hooks of mkdocs (mkdocs.yml names this file) that add pages which are not files below docs/.

These are the commands' reference, generated from the program; files of the project that the documents link to; and notebooks
with their outputs. Links in the documents are relative to the file, as on a code host; `moved` rewrites them to the site's
pages.
"""

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from tools.command_reference import command_page, commands

ROOT = Path(__file__).parents[1]
COMMANDS = "commands"
"""The folder of the commands' pages, and the placeholder in the site's contents that they replace."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")


@cache
def included() -> dict[str, str]:
    """Return the files of the project that become pages, each with its page's place."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    return {
        "README.md": "overview.md",
        "CHANGELOG.md": "project/changelog.md",
        "CONTRIBUTING.md": "project/contributing.md",
        "CODE_OF_CONDUCT.md": "project/conduct.md",
        "CITATION.cff": "project/citation.md",
        "SECURITY.md": "project/security.md",
        "LICENSE": "project/licence.md",
        "src/adagp/data/DIGITS.md": "project/digits.md",
        "src/adagp/data/PERSUASION.md": "project/persuasion.md",
        "examples/plugins/README.md": "examples/plugins.md",
        "examples": "examples/plugins.md",
        **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in examples},
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each command into the site's contents."""
    config.nav = [_with_commands(entry) for entry in config.nav or []]
    return config


def _with_commands(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _with_commands(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [_with_commands(item) for item in entry]
    if entry == COMMANDS:
        return [{f"adagp {words}": _command_place(words)} for words in commands()]
    return entry


def _command_place(words: str) -> str:
    return f"{COMMANDS}/{words.replace(' ', '-')}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    pages: dict[str, str | bytes] = {
        _command_place(words): command_page(words, command) for words, command in commands().items()
    }
    pages |= {place: file_page(ROOT / source) for source, place in included().items() if (ROOT / source).is_file()}
    for path in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        pages |= notebook_pages(path, path.parent.relative_to(config.docs_dir))
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def file_page(path: Path) -> str:
    """Return a file of the project as a page: Markdown as it is, a program or a text as a block."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    language = {".py": "python"}.get(path.suffix, "text")
    return f"# {path.name}\n\n```{language}\n{text.rstrip()}\n```\n"


def notebook_pages(path: Path, folder: Path) -> dict[str, str | bytes]:
    """Return a notebook as a page, with the outputs that it was stored with, and its pictures; each by its place."""
    notebook = nbformat.read(path, as_version=4)
    place = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    body, resources = MarkdownExporter().from_notebook_node(notebook, place)
    title, _, rest = body.lstrip().partition("\n")
    pages: dict[str, str | bytes] = {f"{folder}/{name}": content for name, content in resources["outputs"].items()}
    pages[f"{folder}/{path.stem}.md"] = f"{title}\n\n[This notebook as a file]({path.name})\n{rest}"
    return pages


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to the pages that their targets have in the site."""
    place = page.file.src_uri
    origins = {page_place: source for source, page_place in included().items() if (ROOT / source).is_file()}
    own = PurePosixPath(origins.get(place, f"docs/{place}"))
    return LINK.sub(lambda link: moved(link[1], own, PurePosixPath(place)), markdown)


def moved(link: str, own: PurePosixPath, place: PurePosixPath) -> str:
    """Return a link of the file `own` as it must be in the page at `place`: to another page, or to a file below docs/."""
    target = os.path.normpath(own.parent / link)
    if target in included():
        found = included()[target]
    elif target.startswith("docs/"):
        found = target.removeprefix("docs/")
        is_download = own.with_suffix(".ipynb").name == PurePosixPath(link).name
        if found.endswith(".ipynb") and not is_download:
            found = found.removesuffix(".ipynb") + ".md"
    else:
        return link
    return os.path.relpath(found, place.parent)
