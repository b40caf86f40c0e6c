"""What `shoal submit` says about YAML that is no job."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.kube_documents import read_documents
from shoal.core.errors import BadInput

KINDS = ("ElasticJob", "ScalePlan", "JobResource")
JOB = b"""
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: mnist, annotations: {since: 2024-01-01}}
spec:
  worker:
    template:
      spec:
        containers:
          - {name: main, image: trainer, command: [python, train.py]}
"""
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("k"))
)


def test_a_job_is_read_and_a_date_stays_text() -> None:
    (job,) = read_documents("job.yaml", JOB, KINDS)
    assert job["metadata"]["annotations"] == {"since": "2024-01-01"}


def test_empty_documents_are_passed_over() -> None:
    assert len(read_documents("job.yaml", b"---\n" + JOB + b"---\n---\n" + JOB, KINDS)) == 2


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"a: [", "job.yaml: it is not YAML", id="torn"),
        pytest.param(b"\xff\xfe\x00", "it is not YAML", id="bytes"),
        pytest.param(b"- 1\n- 2\n", "wanted an object .* got list", id="a-list"),
        pytest.param(b"kind: Pod\nmetadata: {name: x}", "kind is one of .* got 'Pod'", id="another-kind"),
        pytest.param(b"kind: ElasticJob\nmetadata: {}", "metadata.name is missing", id="no-name"),
        pytest.param(BOMB, "larger or deeper", id="aliases-that-explode"),
        pytest.param(b"[" * 300 + b"]" * 300, "larger or deeper", id="deep"),
        pytest.param(b"x" * (1 << 20 | 1), "1,048,577 bytes", id="huge"),
        pytest.param(JOB.replace(b"command: [python, train.py]", b"args: [x]"), "command", id="no-command"),
        pytest.param(JOB + b"---\nkind: 7\n", "document 2: kind is one of", id="the-second-one"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        read_documents("job.yaml", data, KINDS)


@given(st.binary(max_size=200))
def test_no_bytes_end_in_anything_but_objects_or_a_complaint(data: bytes) -> None:
    with contextlib.suppress(BadInput):
        read_documents("x", data, KINDS)
