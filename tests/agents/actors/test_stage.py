"""What Ray says when it cannot go on, in one line."""

import pytest

ray = pytest.importorskip("ray")

from roundoff.agents import RunError, TrainConfig  # noqa: E402
from roundoff.agents.actors.stage import Stage, connected  # noqa: E402
from roundoff.ray_cluster import ClusterError  # noqa: E402


class FullRay:
    """Ray with no room left; what else a stage needs of it does nothing."""

    exceptions = ray.exceptions

    def remote(self, *_arguments):
        return self

    def options(self, **_options):
        return self

    def put(self, _value):
        raise ray.exceptions.OutOfDiskError("Local disk is full\nThe object cannot be created, and so on")


def test_weights_for_which_there_is_no_room_end_the_run_with_a_message():
    stage = Stage(FullRay(), TrainConfig(algorithm="dqn", task="gym:CartPole-v1", actors={"count": 1}), {})
    with pytest.raises(RunError) as caught:
        stage.publish(1, None)
    assert "Ray does not take the weights: Local disk is full" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "goes on from the last checkpoint" in str(caught.value)


def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.1:1: Connection refused"), connected(1):
        pass
