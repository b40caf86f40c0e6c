from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.text import age, clean, clean_line, count, seconds, size


@given(st.text())
def test_clean_text_has_no_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert not any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in cleaned)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]52;c;c2VjcmV0\x1b\\x", "x"),
        ("10%\r50%\r100%", "100%"),
        ("dos\r\nline", "dos\nline"),
        ("a\tb", "a\tb"),
        ("abc\u202egnp.exe", "abcgnp.exe"),
    ],
)
def test_what_is_left(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_bytes_that_are_no_text() -> None:
    assert clean_line(b"\xff\xfe ok") == "\ufffd\ufffd ok"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123, "12 ms"), (1.234, "1.23 s"), (12.34, "12.3 s"), (200, "3 min 20 s"), (0, "0 ms")]
)
def test_seconds(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_ages_sizes_counts() -> None:
    assert [age(timedelta(seconds=s)) for s in (5, 700, 3700, 90000)] == ["5 s", "11 min", "1 h 1 min", "1 d 1 h"]
    assert [size(b) for b in (12, 2048, 312 * 2**20, 5 * 2**40)] == ["12 B", "2.0 KiB", "312 MiB", "5.0 TiB"]
    assert [count(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
