"""MkDocs' hook for the site (mkdocs.yml, ./dev docs).

Every Markdown file of the tree is a page under its own path. What pages link to is added: plots and results as they
are, sources as pages that show them. docs/reading.md shows the code of each place that it names. Doxygen has made the
pages of the public headers before, in build/docs-api.
"""

import functools
import pathlib
import posixpath
import re
import sys
import xml.etree.ElementTree

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_links  # noqa: E402
import check_reading  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
API = ROOT / "build/docs-api"
AS_THEY_ARE = {".svg", ".png", ".json"}  # files that a browser shows by itself
LANGUAGES = {".cu": "cuda", ".cuh": "cuda", ".cc": "cpp", ".h": "cpp", ".hpp": "cpp", ".py": "python", ".txt": "text"}
MOST_LINES = 80  # of a place that docs/reading.md shows


@functools.cache
def tree():
    return check_links.Tree(ROOT)


def target_of(page, target):
    """The file of the tree that a link of a page leads to, for a folder its README; None on another host."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z]+:", target):
        return None
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    readme = f"{name}/README.md"
    return readme if readme in tree().files else name if name in tree().files else None


def url_of(name):
    """Where the site has a file of the tree."""
    return name if pathlib.PurePosixPath(name).suffix in {".md", *AS_THEY_ARE} else f"{name}.md"


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def linked_files():
    pages = [name for name in tree().files if name.endswith(".md")]
    lines = ((page, line) for page in pages for _, line in check_links.lines_of(text_of(page)))
    targets = (target_of(page, target) for page, line in lines for target in check_links.links_of(line))
    return sorted({target for target in targets if target and not target.endswith(".md")})


def code_block(name, text, first=1, indent=""):
    language = LANGUAGES.get(pathlib.PurePosixPath(name).suffix, "text")
    lines = [f'````{language} linenums="{first}"', *text.splitlines(), "````"]
    return "\n".join(indent + line for line in lines)


def source_page(config, name):
    return File.generated(config, url_of(name), content=f"# {name}\n\n{code_block(name, text_of(name))}\n")


def on_files(files, config):
    kept = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    pages = sorted(name for name in tree().files if name.endswith(".md"))
    linked = linked_files()
    plain = pages + [name for name in linked if url_of(name) == name]
    kept += [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in plain]
    kept += [source_page(config, name) for name in linked if url_of(name) != name]
    for path in sorted(API.rglob("*")):
        if path.is_file():
            name = f"api/{path.relative_to(API).as_posix()}"
            kept.append(File.generated(config, name, abs_src_path=str(path)))
    sections = {title: pages for entry in config.nav if isinstance(entry, dict) for title, pages in entry.items()}
    sections["Kernels"] += [name for name in pages if re.fullmatch(r"(lab|src/backends/.*)/README\.md", name)]
    sections["Design"] += [name for name in pages if re.match(r"docs/design/000[1-9]|docs/design/00[1-9]", name)]
    return Files(kept)


def with_source_pages(page, line):
    """Links to sources lead to the pages that show them, and links to folders to their READMEs."""

    def replaced(link):
        name = target_of(page, link[1])
        if not name or "#" in link[1]:
            return link[0]
        return link[0].replace(f"({link[1]}", f"({posixpath.relpath(url_of(name), posixpath.dirname(page))}")

    return check_links.LINK.sub(replaced, line)


@functools.cache
def header_pages():
    """Doxygen's page for each name of the public headers."""
    pages = {}
    for compound in xml.etree.ElementTree.parse(API / "headrace.tag").getroot().iter("compound"):
        scope = compound.findtext("name")
        pages.setdefault(scope, compound.findtext("filename"))
        for member in compound.iter("member"):
            name, file = member.findtext("name"), member.findtext("anchorfile")
            if file:
                full = name if compound.get("kind") == "file" else f"{scope}::{name}"
                pages.setdefault(full, f"{file}#{member.findtext('anchor')}")
    return pages


def with_header_links(page, line):
    """Names of the public headers lead to doxygen's pages."""
    up = "../" * page.count("/")

    def linked(name):
        target = header_pages().get(name[0].removesuffix("()").replace("headrace::", "headrace::v0::", 1))
        target = target or header_pages().get(name[0].removesuffix("()").removeprefix("headrace/"))
        return f"[`{name[0]}`]({up}api/{target})" if target else name[0]

    return re.sub(r"\bheadrace(?:::\w+)+(?:\(\))?|\bheadrace_\w+(?:\(\))?|\bheadrace/\w+\.hp?p?\b", linked, line)


def with_code(line):
    """A place of docs/reading.md, and its code."""
    place = check_reading.PLACE.match(line)
    if not place:
        return line
    text = text_of(place["file"])
    first, last = check_reading.find(text, place["symbol"])
    shown = text.splitlines()[first - 1 : min(last, first + MOST_LINES - 1)]
    summary = f'    ??? quote "lines {first} to {first + len(shown) - 1}"'
    return "\n".join([line, "", summary, code_block(place["file"], "\n".join(shown), first, " " * 8), ""])


def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri
    if name not in tree().files:
        return markdown  # made here
    lines = markdown.splitlines()
    for number, line in list(check_links.lines_of(markdown)):
        if name == check_reading.PAGE:
            line = with_code(line)
        if name == "docs/api.md":
            line = with_header_links(name, line)
        lines[number - 1] = with_source_pages(name, line)
    return "\n".join(lines)
