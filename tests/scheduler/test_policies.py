"""Policies by name, the reference page, and what a policy may not do."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from shoal.scheduler.decisions import Code
from shoal.scheduler.policies import POLICIES, UnknownPolicy, known_policies, policy
from shoal.scheduler.settings import SchedulerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "policies.md").read_text()


def test_an_unknown_policy_is_told_with_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match=r"'best' is unknown; there are: cfs, fulfillment$"):
        policy("best")
    with pytest.raises(UnknownPolicy, match="upstream"):
        policy("best", sim=True)


def test_policies_for_comparison_decide_for_no_cluster() -> None:
    with pytest.raises(UnknownPolicy, match="simulator only"):
        policy("upstream")
    assert policy("upstream", sim=True) is POLICIES["upstream"].policy
    assert set(known_policies(sim=False)) == {"cfs", "fulfillment"}


def in_first_column(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_the_page_lists_every_policy() -> None:
    assert in_first_column("Policies") == set(POLICIES)


def test_the_page_lists_every_setting() -> None:
    assert in_first_column("Settings") == {field.name for field in fields(SchedulerSettings)}


def test_the_page_lists_every_reason() -> None:
    assert in_first_column("Reasons") == {str(code) for code in Code}
