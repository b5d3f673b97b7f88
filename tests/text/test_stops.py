from __future__ import annotations

import string

import pytest
from decodepool_worker.text.stops import StopMatcher
from hypothesis import given
from hypothesis import strategies as st

ALPHABET = " ".join(string.ascii_uppercase)  # A B C ... Z


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """Feed pieces until a stop; return what came out, the held-back tail last, and the stop."""
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        out.append(text)
        if stop is not None:
            assert matcher.flush() == ""
            return out, stop
    return [*out, matcher.flush()], None


CASES = [
    pytest.param(["O P Q"], ALPHABET, "A B C D E F G H I J K L M N ", "O P Q", id="across tokens"),
    pytest.param(["O P X"], ALPHABET, ALPHABET, None, id="begins, then fails"),
    pytest.param(["O P Q", "P"], ALPHABET, "A B C D E F G H I J K L M N O ", "P", id="one inside the other"),
    pytest.param(["B C D", "C D"], ALPHABET, "A ", "B C D", id="one the end of the other"),
    pytest.param(["B", "B C"], ALPHABET, "A ", "B", id="one the beginning of the other"),
    pytest.param(["歪"], "正歪赋", "正", "歪", id="three bytes"),
    pytest.param(["aab"], "aaab", "a", "aab", id="overlaps itself"),
    pytest.param(["abab"], "abaabab", "aba", "abab", id="falls back inside itself"),
    pytest.param(["\n\n"], "a\n\n\nb", "a", "\n\n", id="newlines"),
    pytest.param(["Z"], ALPHABET, ALPHABET[:-1], "Z", id="the very last character"),
    pytest.param(["Zz"], ALPHABET, ALPHABET, None, id="half of it at the end"),
    pytest.param([], ALPHABET, ALPHABET, None, id="no stops"),
    pytest.param(["X", "X"], "aXb", "a", "X", id="the same twice"),
]


@pytest.mark.parametrize(("stops", "text", "kept", "found"), CASES)
@pytest.mark.parametrize("width", [1, 2, 3, 7, 1000])
def test_text_up_to_the_stop_comes_out_however_it_is_cut(
    stops: list[str], text: str, kept: str, found: str | None, width: int
) -> None:
    pieces = [text[start : start + width] for start in range(0, len(text), width)]
    out, stop = run(stops, pieces)
    assert ("".join(out), stop) == (kept, found)


def test_a_stop_that_begins_in_the_token_that_completes_other_text() -> None:
    assert run(["P Q"], ["N", " O P", " Q R"]) == (["N", " O ", ""], "P Q")


def test_nothing_is_held_back_that_cannot_become_a_stop() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("abc S") == ("abc ", None)
    assert matcher.push("T") == ("", None)
    assert matcher.push("x") == ("STx", None)
    assert matcher.push("S") == ("", None)
    assert matcher.flush() == "S"


def test_half_a_stop_in_the_prompt_is_not_found() -> None:
    assert run(["O P"], [" P Q"]) == ([" P Q", ""], None)


def test_a_stop_across_two_decodes_is_not_found_and_no_text_is_lost() -> None:
    first, _ = run(["O P"], ["N O "])
    second, stop = run(["O P"], ["P Q"])
    assert "".join(first + second) == "N O P Q"
    assert stop is None


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def plainly(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_matching_is_that_of_the_rule_written_out_plainly(stops: list[str], pieces: list[str]) -> None:
    out, stop = run(stops, pieces)
    assert ("".join(out), stop) == plainly(stops, "".join(pieces))
