"""What mkdocs does beyond mkdocs.yml. Pages that stand at the root of the repository are pages of the site, too, and a link to
any other file of the repository is its name alone: so every page reads the same on a forge. What a reader would fetch from
elsewhere, and a list that is none because no empty line is before it, are warnings: errors with --strict."""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")

FETCHED = re.compile(
    r"""<(?:script|img|iframe|link rel="(?:stylesheet|preconnect|icon)")[^>]*?(?:src|href)="(?:https?:)?//[^"]*"""
)
NO_LIST = re.compile(r"<p>[^<]*\n[*-] ")

_log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, as if they lay in docs."""
    root = Path(config.docs_dir).parent
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has what they name."""
    at_root = page.file.src_uri in ROOT_PAGES
    folder = "" if at_root else normpath(f"docs/{PurePosixPath(page.file.src_uri).parent}")

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        path = normpath(f"{folder}/{target}" if folder else target)
        place = path if path in ROOT_PAGES else path.removeprefix("docs/")
        if files.get_file_from_path(place) is None or (place == path and path not in ROOT_PAGES):
            return text
        here = PurePosixPath(page.file.src_uri).parent
        return f"{picture}[{text}]({relpath(place, here)}{anchor or ''})"

    return LINK.sub(link, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn of what a page takes from the network, and of lists that Python-Markdown does not see."""
    for fault in [*FETCHED.findall(output), *NO_LIST.findall(output)]:
        _log.warning("%s: %s", page.file.src_uri, fault)
    return output
