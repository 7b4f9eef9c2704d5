"""Folders as a sweep of a user's program leaves them."""

import json

ACCURACY = {"name": "accuracy", "goal": "maximize", "crash": 0.0, "unit": "", "range": [0, 1]}
LOSS = {"name": "loss", "goal": "minimize", "crash": None, "unit": "nats", "range": None}
BIRTH = (
    "loss is not finite at step 150; first non-finite result: overflow in aten.exp.default (forward in net.1)"
    " at train.py:12: h = torch.exp(x)"
)


def write_run(root, fmt, seed, score, *, metric=ACCURACY, program="train.py:train", crash=None, logs=None, **keys):
    """One run; ``crash`` is a step and a reason."""
    config = {"program": program, "format": fmt, "seed": seed} | keys
    about = "-".join(str(value) for value in keys.values()).replace("/", "_")
    identity = f"{program.rpartition(':')[2]}-{fmt}-s{seed}-{about or 'x'}".replace(":", "_")
    folder = root / "runs" / identity
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": config, "version": "0.2.0"}))
    if logs is None:
        logs = [{"step": step, "train_loss": 10.0 ** -(step / 100)} for step in (100, 200, 300)]
        logs += [{"step": 300, metric["name"]: score}] if crash is None else []
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"kind": "log"} | record) + "\n" for record in logs)
    result = {"status": "done", "return": score, "return_std": 0.0, "step": 300, "crash": None}
    result |= {"values": {metric["name"]: score, "size": 7}, "metric": metric}
    if crash:
        result |= {"status": "crashed", "return": metric["crash"], "crash": {"step": crash[0], "reason": crash[1]}}
        result |= {"values": {}, "step": crash[0]}
    (folder / "result.json").write_text(json.dumps(result))
    timing = {"seconds": 3.0, "steps_per_second": 100.0, "torch": "2.13.0", "processor": "Abacus 9", "source": "c0ffee"}
    (folder / "timing.json").write_text(json.dumps(timing))
    return {"id": identity, "config": config}


def write_failed(root, fmt, seed, *, reason="KeyError: 'best'", program="train.py:train", **keys):
    """One run that could not be brought to its end."""
    run = write_run(root, fmt, seed, 0.0, program=program, **keys)
    folder = root / "runs" / run["id"]
    (folder / "result.json").unlink()
    (folder / "failed.json").write_text(json.dumps({"reason": reason}))
    return run


def write_sweep(root, runs, metric=ACCURACY, program="train.py:train"):
    """The file of the sweep; returns the folder."""
    content = {"layout": 1, "name": "mine", "description": "", "varying": [], "runs": runs}
    (root / "sweep.json").write_text(json.dumps(content | {"program": program, "metric": metric}))
    return root
