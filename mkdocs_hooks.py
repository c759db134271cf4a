"""What the site takes from the top of the repository, and what it must not hold: anything that a reader's browser would fetch from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
PAGES["src/ecrl_cli/cli/explained.md"] = "errors.md"  # beside the command that prints it: it is in the wheel too
WORKER = "worker-from-disk.js"
# What a page loads by itself, as opposed to a link that a reader may follow.
FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//|<link[^>]*rel=[\"']?(?:stylesheet|preconnect|preload)[\"']?[^>]*href=[\"']?(?:https?:)?//"
)


def on_files(files: Files, config: Any) -> Files:
    """The documents at the top as pages, their links to docs/ as links beside them."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, there in PAGES.items():
            text = text.replace(f"]({other}", f"]({there}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """`../SECURITY.md`, as a page in docs/ names it in the repository, as the page that it is in the site."""
    del page, config, files
    for name, there in PAGES.items():
        markdown = re.sub(rf"\]\(\.\./((?:\.\./)*){re.escape(name)}", rf"](\1{there}", markdown)
    return markdown


def on_config(config: Any) -> Any:
    """The search from the disk needs a stand-in for workers, which the offline plugin would have
    every reader's browser fetch: the site has its own.
    """
    asked = config.extra["polyfills"]
    due = [WORKER if "iframe-worker" in str(script) else script for script in asked]
    if WORKER not in due:
        raise PluginError(f"the offline plugin asks for no iframe-worker, only {asked}: {WORKER}")
    config.extra["polyfills"] = due
    return config


def on_post_build(config: Any) -> None:
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := FETCHED.search(path.read_text(encoding="utf-8")):
            name = path.relative_to(config.site_dir)
            raise PluginError(f"{name} fetches from elsewhere: {found.group()}")
