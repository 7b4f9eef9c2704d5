"""Scripts in processes of their own, which may pretend to have a GPU (``pretended_gpu``)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


ALL = """
import io, json, traceback
from contextlib import redirect_stdout

said = {{}}
for name, script in {scripts!r}.items():
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            exec(script, {{"__name__": name}})
            said[name] = json.loads(printed.getvalue().splitlines()[-1])
        except Exception:
            said[name] = traceback.format_exc()
print(json.dumps(said))
"""


def run_all(folder, scripts):
    """What each of the scripts says, by name, run one after the other in one process; of one that fails, its error."""
    return run(folder, ALL.format(scripts=scripts))


def run(folder, script, **variables):
    """What the last line says that a script prints, as JSON; the folder is for what is compiled."""
    pytest.importorskip("triton")
    if torch.version.cuda:
        pytest.skip("PyTorch built with CUDA has the hooks that a pretended GPU would register")
    if not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("needs a C++ compiler")
    paths = os.pathsep.join([str(HERE), *sys.path])
    # Loops for the CPU are not the subject: without vectors no instructions are tried, which takes seconds a folder.
    # One program after the other is compiled, without processes that inductor would start for more.
    alone = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_VEC_ISA_OK": "0", "OMP_NUM_THREADS": "1"}
    alone["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    env = os.environ | alone | {"PYTHONPATH": paths} | variables
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
