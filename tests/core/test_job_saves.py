"""What a job with parameter servers makes of its checkpoints: when it may end, and which of them must stay."""

from tests.core.ps_stories import PSStory
from tests.core.test_job_servers import trained_through

from shoal.core.ps.evaluation import MOST_WAITING
from shoal.core.ps.words import Drain, Drained, EvaluatorReady, Go, Resumed, Save, SaveFailed, SaveWanted, Scored
from shoal.core.view import JobPhase


def saved(story: PSStory) -> Save:
    """A checkpoint is made. Returns what the chief was told."""
    story.say("worker-0", SaveWanted(reason="it is time"))
    story.obey()
    return story.words(Save)[-1].what.word  # type: ignore[union-attr, return-value]


def failed_to_save(story: PSStory, why: str) -> None:
    """The chief, who is alone, wants a checkpoint and cannot write it."""
    story.say("worker-0", SaveWanted(reason="end"))
    drain = story.words(Drain)[-1].what.word  # type: ignore[union-attr]
    assert isinstance(drain, Drain)
    story.say("worker-0", Drained(barrier=drain.barrier, step=1))
    story.say("worker-0", SaveFailed(barrier=drain.barrier, reason=why))
    assert story.words(Go), "training goes on"
    story.say("worker-0", Resumed(version=story.version))


def test_a_job_whose_last_checkpoint_could_not_be_written_does_not_succeed() -> None:
    story = PSStory(workers=1)
    story.train("worker-0")
    saved(story)
    trained_through(story, "worker-0")
    failed_to_save(story, "No space left on device")
    story.succeed("worker-0")
    assert story.job.ending is JobPhase.FAILED
    assert "trained, but not saved: /ckpt" in story.job.reason
    assert "No space left on device" in story.job.reason


def test_a_checkpoint_that_is_made_in_the_end_makes_up_for_those_that_failed() -> None:
    story = PSStory(workers=1)
    story.train("worker-0")
    trained_through(story, "worker-0")
    failed_to_save(story, "No space left on device")
    saved(story)
    story.succeed("worker-0")
    assert story.job.ending is JobPhase.SUCCEEDED


def test_the_chief_is_told_which_checkpoints_must_stay() -> None:
    story = PSStory(evaluator=True)
    story.train()
    story.join("evaluator-2")
    story.say("evaluator-2", EvaluatorReady())
    paths = [saved(story).path for _ in range(5)]
    assert set(saved(story).needed) == set(paths), "nothing is scored yet"
    for path in paths:
        story.say("evaluator-2", Scored(path=path, metrics={}))
    word = saved(story)
    assert paths[-1] not in word.needed
    last = story.job.servers.checkpoints[-2].path  # type: ignore[union-attr]
    assert word.needed == (last,), "it waits for its score, and the job would go back to it"


def test_without_an_evaluator_only_the_one_that_the_job_would_go_back_to_must_stay() -> None:
    story = PSStory()
    story.train()
    first = saved(story)
    assert first.needed == ()
    assert saved(story).needed == (first.path,)


def test_it_is_said_when_a_checkpoint_will_not_be_scored() -> None:
    story = PSStory(evaluator=True)
    story.train()
    saves = [saved(story) for _ in range(MOST_WAITING)]
    assert not [d for d in story.job.decisions if "will not be scored" in d.reason]
    assert saves[0].path in saved(story).needed
    (said,) = [d.reason for d in story.job.decisions if "will not be scored" in d.reason]
    assert said == f"the checkpoint of step {saves[0].barrier} will not be scored: 10 others wait for the evaluator"
    assert saves[0].path not in saved(story).needed
