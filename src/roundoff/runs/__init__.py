"""The folder of a run: its files, with one writer and one reader for agents, programs, sweeps and analysis.

The files, in the order that a run writes them:

``config.json``
    The config, canonical (sorted keys; without keys that came later, at their defaults), and the version of roundoff.
    Written first.
``metrics.jsonl``
    One JSON object a line: ``{"kind": "eval", "step": ..., "return_mean": ..., "return_std": ..., "returns": [...]}``
    and ``{"kind": "train", "step": ..., ...}``; with ``evaluate_in`` also ``{"kind": "eval_in", "step": ..., "in":
    "int8", ...}``, of runs with actors ``{"kind": "pull", ...}``, of programs ``{"kind": "log", ...}``, of observed
    runs also ``{"kind": "numerics", ...}``. No wall-clock times, so that the same config gives the
    same bytes. Appended to.
``tensorboard``
    The same curves as event files. Appended to.
``checkpoint.pt``
    Everything needed to continue identically (replay, optimizer, generators, environments), as a plain versioned dict
    loadable with ``weights_only=True``; holds the length of ``metrics.jsonl`` at that moment: a resumed run
    cuts it back to this length. Replaced atomically; removed when the run has ended.
``learners``
    Checkpoints of further learners. Removed when the run has ended.
``snapshots``
    With ``keep_networks: true``: ``<step>.npz``, the networks at each evaluation, and ``states.npz``, up to 2000 states
    and actions that the run met; ``roundoff plot`` compares runs with the fp32 run of the same seed.
``agent.pt``
    The final weights.
``numerics.csv``
    Of observed runs: counts of overflows, underflows, ... by role and operation.
``timing.json``
    Wall-clock seconds (of runs trained together, each its share), steps per second, seconds by activity and agent
    steps since the last interruption; what actors spent; versions, processor, commit, time of the end. Never compared.
``result.json``
    ``{"status": "done" or "crashed", "return": ..., "return_std": ..., "step": ..., "crash": null or {"step": ...,
    "reason": ...}, "updates": how many were made}``; of runs in fp32 also ``"untrained"``, the mean return before the
    first update; with ``evaluate_in`` also ``"in"``, mean returns by quantization; of programs ``"values"`` and
    ``"metric"`` in place of ``"updates"``. Last, atomically: its presence means that the run has ended.
``failed.json``
    ``{"reason": ...}``: why the run could not be brought to its end. Written by a sweep; its next call removes it and
    tries the run again.
"""
