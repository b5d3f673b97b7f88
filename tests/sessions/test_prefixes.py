from __future__ import annotations

import pytest
from decodepool_worker.engine.rows import PAGE_TOKENS
from decodepool_worker.sessions.prefixes import NO_PREFIX, PrefixIndex, page_digest

from tests.sessions.checking_engine import prompt


def filled(tokens: list[int]) -> PrefixIndex:
    index, digest = PrefixIndex(), NO_PREFIX
    for page, begin in enumerate(range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS)):
        digest = page_digest(digest, tokens[begin : begin + PAGE_TOKENS])
        assert index.add(digest, page)
    return index


@pytest.mark.parametrize(
    ("length", "pages"),
    [(1, 0), (64, 0), (65, 1), (128, 1), (129, 2), (192, 2), (193, 3), (300, 3)],
)
def test_the_longest_run_of_full_pages_is_found_and_a_token_is_left(length: int, pages: int) -> None:
    tokens = prompt(300)
    found = filled(tokens[:192]).match(tokens[:length])
    assert [page for _, page in found] == list(range(pages))


@pytest.mark.parametrize("changed", [0, 63, 64, 127, 128, 191])
def test_a_run_ends_before_the_first_page_that_differs(changed: int) -> None:
    tokens = prompt(200)
    index = filled(tokens)
    tokens[changed] += 1
    assert len(index.match(tokens)) == changed // PAGE_TOKENS


def test_equal_pages_after_different_prefixes_are_different() -> None:
    page = prompt(64)
    assert page_digest(page_digest(NO_PREFIX, prompt(64, 1)), page) != page_digest(NO_PREFIX, page)


def test_a_forgotten_page_ends_the_run() -> None:
    tokens = prompt(200)
    index = filled(tokens)
    index.forget(1)
    assert [page for _, page in index.match(tokens)] == [0]
    assert len(index) == 2


def test_the_first_page_with_a_prefix_stays_the_known_one() -> None:
    tokens = prompt(65)
    index = filled(tokens)
    assert not index.add(page_digest(NO_PREFIX, tokens[:64]), 9)
    assert [page for _, page in index.match(tokens)] == [0]
