"""Reasons: one table, a hint wherever somebody has to do something, and nothing is said that is not in it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.api.reasons import Reason, Sort, explained
from shoal.operator.scheduling.round import NOT_COUNTED
from shoal.scheduler.decisions import Code

SOURCES = Path(__file__).parents[2] / "src" / "shoal"
SPEAKERS = {"Said": 1, "say": 0, "Denied": 0, "Trouble": None, "Ending": None, "Notice": None, "_refused": 1}
"""Who says a reason: by position, or by its name alone."""
MUST_HELP = (Sort.TROUBLE, Sort.REFUSAL)


def said() -> Iterator[tuple[str, str, str]]:
    """Every reason in the code: where, who says it, the word."""
    names = {each.name: str(each) for each in Reason}
    places = ("operator", "platforms/kubernetes")
    paths = [path for place in places for path in sorted((SOURCES / place).rglob("*.py"))]
    for path in [*paths, *sorted((SOURCES / "cli").glob("operator*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            speaker = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = SPEAKERS.get(speaker)
            found = [word.value for word in node.keywords if word.arg == "reason"]
            if speaker not in SPEAKERS and not (found and speaker.startswith("tell")):
                continue
            if place is not None and len(node.args) > place:
                found.append(node.args[place])
            for each in (part for one in found for part in ast.walk(one)):
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value[:1].isupper():
                    yield str(path.relative_to(SOURCES)), speaker, each.value
                elif isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "Reason":
                    yield str(path.relative_to(SOURCES)), speaker, names[each.attr]


def test_nothing_is_said_that_is_not_in_the_table() -> None:
    found = list(said())
    assert len(found) > 80
    assert {word for _, _, word in found} <= set(Reason)


def test_every_trouble_and_every_refusal_says_what_to_do() -> None:
    assert [each for each in Reason if each.sort in MUST_HELP and not each.hint] == []
    helpers = [(where, word) for where, who, word in said() if who in ("Trouble", "Denied", "_refused")]
    assert helpers
    assert [each for each in helpers if Reason(each[1]).sort not in MUST_HELP] == []


def test_every_word_of_the_scheduler_that_a_job_waits_with_is_in_the_table() -> None:
    grows_or_shrinks = {Code.FREE_ROOM, Code.FAIRNESS, Code.MAKE_ROOM, Code.PRESSURE, Code.ABOVE_MAX}
    assert {str(code) for code in Code if code not in grows_or_shrinks} | {NOT_COUNTED} <= set(Reason)


@pytest.mark.parametrize("each", Reason)
def test_words_are_camel_case_and_meanings_are_sentences(each: Reason) -> None:
    assert each.isalpha()
    assert each[0].isupper()
    assert each.meaning.endswith(".")
    assert not each.hint.endswith(".")


def test_the_hint_follows_the_words_of_whoever_refused() -> None:
    told = explained("ImagePullFailed", "image nope:1 cannot be had: not found", 1024)
    assert told.startswith("image nope:1 cannot be had: not found; push the image")
    assert "spec.suspend" in told
    assert explained("AtTargetSize", "", 1024) == ""
    assert explained("Granted", "as asked", 1024) == "as asked"
    assert explained("ImagePullFailed", "", 1024) == ""
    assert explained("TrainingFailed", "a traceback", 1024) == "a traceback"


def test_of_a_long_message_the_hint_is_kept() -> None:
    told = explained("QuotaExceeded", "x" * 5000, 1024)
    assert len(told) == 1024
    assert told.endswith(Reason.QUOTA_EXCEEDED.hint)
