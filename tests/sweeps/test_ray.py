"""Sweeps on a real Ray cluster, of several nodes on this machine."""

import pytest
from forked import Silent

from roundoff.agents import train
from roundoff.ray_cluster import ClusterError
from roundoff.sweeps import SweepError, plan_text, run_sweep
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.workers.on_ray import RayExecutor, _Relay

pytest.importorskip("ray")

TINY = """
name: tiny
base:
  task: cartpole_swingup
  action_repeat: 50
  hidden_units: 8
  batch_size: 8
  seed_steps: 5
  eval_every: 1000
  eval_episodes: 1
  checkpoint_every: 200
"""


class Recorder(Silent):
    """Kills a node as soon as a run on each has come this far."""

    def __init__(self, kill=None, workers=0):
        self.kill, self.workers = kill, workers
        self.far, self.ended, self.started = set(), [], []

    def event(self, event, status, score):
        if event.kind == "started":
            self.started.append(event.run.id)
        elif event.kind == "ended":
            self.ended.append(event.run.id)
        elif event.kind == "progress" and event.progress["step"] >= 1000:
            self.far.add(event.run.id)
            if self.kill and len(self.far) == self.workers:
                self.kill()
                self.kill = None


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def results(directory, plan):
    store = SweepDirectory(directory)
    names = ("config.json", "metrics.jsonl", "result.json")
    return {run.id: [(store.run_path(run) / name).read_bytes() for name in names] for run in plan.runs}


def check(plan, directory, straight, recorder):
    assert sorted(recorder.ended) == sorted(run.id for run in plan.runs)  # each once
    for run in plan.runs:
        train(run.config, SweepDirectory(straight).run_path(run))
    assert results(directory, plan) == results(straight, plan)
    assert not list(directory.glob("leases/[!.]*"))
    assert not list(directory.glob("logs/.shared*"))


@pytest.mark.slow
def test_results_are_the_local_ones(cluster, tmp_path):
    plan = plan_text(TINY + "  steps: 1000\ngrid: {seed: [0, 1]}", "tiny")
    with pytest.raises(SweepError, match=r"no node with room for a run, which takes 1 CPUs and 0\.5 GPUs"):
        RayExecutor(address=cluster.address, gpus=0.5)
    recorder = Recorder()
    executor = RayExecutor(address=cluster.address, cpus=0.5)
    assert executor.limit == 2
    executor.limit = 1
    summary = run_sweep(plan, tmp_path / "ray", executor=executor, watcher=recorder)
    assert (summary.done, summary.failed) == (2, 0)
    check(plan, tmp_path / "ray", tmp_path / "straight", recorder)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_node_is_lost_in_the_middle(cluster, tmp_path, attempt):
    plan = plan_text(TINY + "  steps: 8000\ngrid: {format: [fp32, e5m10], seed: [0, 1]}", "tiny")
    node = cluster.add_node(num_cpus=1)
    recorder = Recorder(lambda: cluster.remove_node(node, allow_graceful=False), workers=2)
    summary = run_sweep(plan, tmp_path / "ray", executor=RayExecutor(address=cluster.address), watcher=recorder)
    assert (summary.done, summary.failed) == (4, 0)
    assert recorder.kill is None
    assert len(recorder.started) == 5  # one of them twice
    check(plan, tmp_path / "ray", tmp_path / "straight", recorder)


def test_a_folder_that_a_node_does_not_see_is_named(tmp_path):
    relay = _Relay(str(tmp_path / "sweep" / "logs" / "worker-1.log"), str(tmp_path / "missing"))
    ((message,), reason) = relay.receive()
    assert (message["event"], reason) == ("unusable", "")
    assert f"{tmp_path / 'sweep'}: the Ray node" in message["reason"]
    relay.stop()
    assert relay.receive() == ([], "it was never started")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1"])
def test_no_cluster(address):
    with pytest.raises(ClusterError, match=f"no Ray cluster at {address}: "):
        RayExecutor(address=address)
