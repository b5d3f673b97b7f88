"""Each live page is a document, a style and a script of its own, over the style and script that both have."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from decodepool_gateway.routes import ROUTES as GATEWAY_ROUTES
from decodepool_web.live_page import live_text
from decodepool_worker.serving.routes import ROUTES as WORKER_ROUTES

COMMON = live_text("decodepool_web", "page.js")
COMMON_STYLE = live_text("decodepool_web", "page.css")
IMPORT = r'^import \{ (.+) \} from "\./page\.js";$'
DEFINED = r"(?:async )?(?:function|const|let) ([\w$]+)"


@dataclass(frozen=True)
class Page:
    """What a server has of its own."""

    document: str
    style: str
    script: str
    paths: frozenset[str]

    @property
    def taken(self) -> set[str]:
        """What the script imports of the common one."""
        (names,) = re.findall(IMPORT, self.script, re.MULTILINE)
        return set(names.split(", "))

    @property
    def own(self) -> str:
        """The script behind its import."""
        return re.split(IMPORT, self.script, flags=re.MULTILINE)[-1]


PAGES = {
    "worker": Page(
        live_text("decodepool_worker.serving", "index.html"),
        live_text("decodepool_worker.serving", "live.css"),
        live_text("decodepool_worker.serving", "live.js"),
        frozenset(route.path for route in WORKER_ROUTES),
    ),
    "pool": Page(
        live_text("decodepool_gateway", "index.html"),
        live_text("decodepool_gateway", "pool.css"),
        live_text("decodepool_gateway", "pool.js"),
        frozenset(route.path for route in GATEWAY_ROUTES),
    ),
}
EACH_PAGE = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


def is_called(name: str, script: str) -> bool:
    return bool(re.search(rf'(?<![\w.$"-]){re.escape(name)}\(', script))


def is_used(name: str, script: str) -> bool:
    if name == "$":  # no word
        return is_called(name, script)
    return bool(re.search(rf"(?<![\w.$]){name}\b", script))


@EACH_PAGE
def test_scripts_name_what_the_document_has(page: Page) -> None:
    scripts = COMMON + page.script
    used = set(re.findall(r'\$\("([\w-]+)"\)', scripts)) | set(re.findall(r'(?:figure|chart)\("([\w-]+)"', scripts))
    assert used <= set(re.findall(r'id="([\w-]+)"', page.document))


@EACH_PAGE
def test_a_script_takes_from_the_common_one_what_that_gives_and_uses_it(page: Page) -> None:
    assert page.taken <= set(re.findall(rf"^export {DEFINED}", COMMON, re.MULTILINE))
    assert {name for name in page.taken if not is_used(name, page.own)} == set()


@EACH_PAGE
def test_what_a_script_uses_of_the_common_one_it_takes_or_has_itself(page: Page) -> None:
    had = page.taken | set(re.findall(rf"^{DEFINED}", page.own, re.MULTILINE))
    common = set(re.findall(rf"^(?:export )?{DEFINED}", COMMON, re.MULTILINE))
    assert {name for name in common - had if is_called(name, page.own)} == set()
    assert {name for name in common - had if name.isupper() and is_used(name, page.own)} == set()


@EACH_PAGE
def test_colours_that_a_page_uses_are_mixed(page: Page) -> None:
    style = COMMON_STYLE + page.style
    used = set(re.findall(r"var\((--[\w-]+)\)", style)) | set(re.findall(r'"(--[\w-]+)"', COMMON + page.script))
    assert used <= set(re.findall(r"(--[\w-]+): ", style))


@EACH_PAGE
def test_what_a_document_and_its_script_load_is_served(page: Page) -> None:
    loaded = {f"/{path}" for path in re.findall(r'(?:href|src)="(live/[^"]+)"', page.document)} | {"/live/page.js"}
    assert len(loaded) == 4
    assert loaded <= page.paths


@pytest.mark.parametrize("script", [COMMON, *(page.script for page in PAGES.values())], ids=["common", *PAGES])
def test_text_goes_in_as_text(script: str) -> None:
    assert "innerHTML" not in script
