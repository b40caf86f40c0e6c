"""How processes end: the rows of elastic-job §3 that an exit can tell, one by one."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.exits import ExitCause, ProcessExit, cause_of, describe, shell_code


@pytest.mark.parametrize(
    ("exit", "cause"),
    [
        pytest.param(ProcessExit(code=0), ExitCause.SUCCEEDED, id="success"),
        pytest.param(ProcessExit(code=137, oom=True), ExitCause.OOM, id="the-kernel-took-it"),
        pytest.param(ProcessExit(code=1, oom=True), ExitCause.OOM, id="oom-counts-before-the-code"),
        pytest.param(ProcessExit(code=247), ExitCause.OOM, id="247"),
        pytest.param(ProcessExit(code=137), ExitCause.KILLED, id="sigkill-without-oom"),
        pytest.param(ProcessExit(code=143), ExitCause.KILLED, id="sigterm"),
        pytest.param(ProcessExit(code=130), ExitCause.KILLED, id="sigint"),
        pytest.param(ProcessExit(code=129), ExitCause.KILLED, id="sighup"),
        pytest.param(ProcessExit(code=201), ExitCause.HARDWARE, id="201"),
        pytest.param(ProcessExit(code=202), ExitCause.HARDWARE, id="202"),
        pytest.param(ProcessExit(code=1), ExitCause.USER_ERROR, id="exit-1"),
        pytest.param(ProcessExit(code=127), ExitCause.USER_ERROR, id="exit-127"),
        pytest.param(ProcessExit(code=134), ExitCause.USER_ERROR, id="sigabrt"),
        pytest.param(ProcessExit(code=135), ExitCause.USER_ERROR, id="sigbus"),
        pytest.param(ProcessExit(code=136), ExitCause.USER_ERROR, id="sigfpe"),
        pytest.param(ProcessExit(code=139), ExitCause.USER_ERROR, id="sigsegv"),
        pytest.param(ProcessExit(code=1, error="Traceback …"), ExitCause.USER_ERROR, id="traceback"),
        pytest.param(ProcessExit(code=76), ExitCause.DO_NOT_RESTART, id="76"),
        pytest.param(ProcessExit(code=77), ExitCause.LEFT, id="77"),
        pytest.param(ProcessExit(code=128), ExitCause.USER_ERROR, id="no-signal-0"),
        pytest.param(ProcessExit(code=255), ExitCause.USER_ERROR, id="beyond-the-signals"),
    ],
)
def test_cause(exit: ProcessExit, cause: ExitCause) -> None:
    assert cause_of(exit) is cause


@given(st.integers(1, 127).filter(lambda code: code not in (76, 77)))
def test_every_small_code_is_the_users(code: int) -> None:
    assert cause_of(ProcessExit(code=code)) is ExitCause.USER_ERROR


@given(st.integers(0, 255), st.booleans())
def test_only_zero_is_success(code: int, oom: bool) -> None:
    assert (cause_of(ProcessExit(code=code, oom=oom)) is ExitCause.SUCCEEDED) == (code == 0)


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143), (255, 255)])
def test_codes_are_counted_as_the_shell_does(returncode: int, code: int) -> None:
    assert shell_code(returncode) == code


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "exit 1"), (137, "SIGKILL (exit 137)"), (139, "SIGSEGV (exit 139)"), (128, "exit 128"), (250, "exit 250")],
)
def test_an_exit_is_described_for_people(code: int, said: str) -> None:
    assert describe(ProcessExit(code=code)) == said


def test_a_signal_without_a_name_is_described_by_its_code() -> None:
    nameless = next(n for n in range(1, signal.NSIG) if n not in set(signal.Signals))
    assert describe(ProcessExit(code=128 + nameless)) == f"exit {128 + nameless}"
