"""Tokens: what opens which door."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.wire.tokens import JobKeys, JobTokens, Purpose, token_uid

KEYS = JobKeys.new("default/mnist.7")


@pytest.mark.parametrize("purpose", Purpose)
def test_a_token_opens_its_own_door_and_no_other(purpose: Purpose) -> None:
    token = KEYS.token(purpose)
    assert [other for other in Purpose if KEYS.allows(token, other)] == [purpose]
    assert not JobKeys(uid="default/other.1", install_key=KEYS.install_key).allows(token, purpose)
    assert not JobKeys.new(KEYS.uid).allows(token, purpose)
    assert token_uid(token) == KEYS.uid


def test_a_master_that_was_given_tokens_only_lets_in_just_those_who_hold_them() -> None:
    given_tokens = JobTokens(tokens={Purpose.AGENT: KEYS.token(Purpose.AGENT)})
    assert given_tokens.allows(KEYS.token(Purpose.AGENT), Purpose.AGENT)
    assert not given_tokens.allows(KEYS.token(Purpose.ADMIN), Purpose.ADMIN)
    assert not given_tokens.allows("", Purpose.ADMIN)
    assert KEYS.token(Purpose.AGENT) not in repr(given_tokens)


@given(st.text(max_size=80))
def test_no_text_that_was_not_made_with_the_key_opens_anything(text: str) -> None:
    assert not any(KEYS.allows(text, purpose) for purpose in Purpose)


def test_what_is_no_token_is_said_to_be_none() -> None:
    with pytest.raises(BadInput, match="not a token"):
        token_uid("???")
