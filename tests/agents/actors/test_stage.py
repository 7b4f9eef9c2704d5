"""The stage of a run: in which order it takes answers, and what it says in one line when Ray cannot go on."""

from types import SimpleNamespace

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
    assert "continues from the last checkpoint" in str(caught.value)


def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.1:1: Connection refused"), connected(1):
        pass


class Answering:
    """Ray, and the actors on it, which have always answered already; of those it names as many as it is asked for."""

    exceptions = ray.exceptions

    def __init__(self):
        self.answers = {}

    def remote(self, *_arguments):
        return self

    def options(self, **_options):
        return self

    def wait(self, orders, num_returns, timeout):
        return orders[-num_returns:], orders[:-num_returns]  # the youngest of them, in the order of the list

    def get(self, order, timeout):
        return self.answers[order]


class Asked:
    """A method of an actor's: the n-th time it is asked for something, it answers n."""

    def __init__(self, ray, rank):
        self.ray, self.rank, self.times = ray, rank, 0

    def remote(self, _count):
        self.times += 1
        self.ray.answers[self.rank, self.times] = self.times
        return self.rank, self.times


def test_answers_come_in_the_order_of_an_actors_steps_and_from_all_actors():
    cluster = Answering()
    stage = Stage(cluster, TrainConfig(algorithm="dqn", task="gym:CartPole-v1", actors={"count": 3}), {})
    for rank in range(3):
        stage._actors[rank] = SimpleNamespace(collect=Asked(cluster, rank))
        stage.ask(rank, 16)
        stage.ask(rank, 16)
    received = []
    for _ in range(30):
        rank, answer = stage.receive()
        received.append((rank, answer))
        stage.ask(rank, 16)
    for rank in range(3):
        assert [answer for whose, answer in received if whose == rank] == list(range(1, 11))
