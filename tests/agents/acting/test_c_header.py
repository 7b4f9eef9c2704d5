"""The C header, compiled by gcc: the bits of the simulated policy."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from acting_policies import CASES, learner_of, observations_of, perceptron

from roundoff.agents import RunError
from roundoff.agents.acting.c_header import c_header
from roundoff.agents.acting.engines import SimulatedEngine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.models.policy_layers import Activation, Decision

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2")


class Compiled:
    """The functions of a header, on arrays."""

    def __init__(self, text, folder, *, discrete, flags=STRICT):
        (folder / "policy.h").write_text(text)
        act = "float act(const float *x, float *y) { (void)y; return (float)policy_act(x); }"
        if not discrete:
            act = "float act(const float *x, float *y) { policy_act(x, y); return 0.0f; }"
        (folder / "policy.c").write_text(
            '#include "policy.h"\nvoid outputs(const float *, float *);\nfloat act(const float *, float *);\n'
            f"void outputs(const float *x, float *y) {{ policy_outputs(x, y); }}\n{act}\n"
        )
        library = folder / "policy.so"
        subprocess.run(["gcc", *flags, "-shared", "-fPIC", "-o", library, folder / "policy.c"], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.act.restype = ctypes.c_float
        self._discrete = discrete

    def outputs_and_actions(self, observations, outputs, actions):
        made, done = np.zeros((len(observations), outputs), np.float32), np.zeros((len(observations), actions))
        for observation, row, action in zip(observations, made, done, strict=True):
            x = np.ascontiguousarray(observation, np.float32)
            numbers = np.zeros(max(outputs, actions), np.float32)
            self._library.outputs(self._of(x), self._of(row))
            chosen = self._library.act(self._of(x), self._of(numbers))
            action[:] = np.arange(actions) == chosen if self._discrete else numbers[:actions]
        return made, done

    @staticmethod
    def _of(array):
        return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def check(policy, fmt, observations, folder, *, ways=(STRICT,)):
    """Checks that the header, compiled in some ways, and the simulation give the same bits for each observation.

    Integers of a batch share a scale: there each observation is simulated by itself, and elsewhere some of them are.
    """
    packed = PackedPolicy.of(policy, fmt)
    of_integers = fmt.startswith("int")
    engine = SimulatedEngine(packed.to_bytes(), accumulate=None if of_integers else "fp32*fp32")
    alone = len(observations) if of_integers else 20
    batches = [*(observations[i : i + 1] for i in range(alone)), *([] if of_integers else [observations[alone:]])]
    both = [engine.outputs_and_actions(batch) for batch in batches]
    outputs, actions = (np.concatenate(parts) for parts in zip(*both, strict=True))
    for number, flags in enumerate(ways):
        own = folder / str(number)
        own.mkdir()
        compiled = Compiled(c_header(packed), own, discrete=policy.decision.discrete, flags=flags)
        theirs, their_actions = compiled.outputs_and_actions(observations, outputs.shape[1], actions.shape[1])
        np.testing.assert_array_equal(theirs, outputs)
        np.testing.assert_array_equal(their_actions, actions)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fmt", ["fp32", "int8", "int4_ax0"])
def test_compiled_policies_have_the_bits_of_simulated_ones(case, fmt, tmp_path):
    check(learner_of(case).policy_layers(), fmt, observations_of(case, 200), tmp_path)


@pytest.mark.parametrize("fmt", ["int8_ax0", "int7", "int5_ax0", "int3", "int2", "e4m3", "e5m2", "e4m3fn", "e2m1",
                                 "e3m2", "e2m3", "e4m3fn_saturate"])  # fmt: skip
def test_so_they_have_in_every_format(fmt, tmp_path):
    policy = perceptron([7, 21, 15, 3], hidden=Activation.TANH)
    observations = np.random.default_rng(0).standard_normal((150, 7)).astype(np.float32)
    observations[:20] *= 1e-3
    observations[20:40] *= 2
    observations[40] = 0
    check(policy, fmt, observations, tmp_path)


@pytest.mark.parametrize("fmt", ["int8", "fp32", "e4m3"])
def test_so_they_have_with_elu_and_outputs_as_they_are(fmt, tmp_path):
    policy = perceptron([7, 21, 15, 3], hidden=Activation.ELU, decision=Decision.OUTPUTS)
    observations = np.random.default_rng(0).standard_normal((500, 7)).astype(np.float32)
    observations[:50] *= 1e-3
    observations[50:60] = 0
    observations[60:100] *= 10
    check(policy, fmt, observations, tmp_path)


@pytest.mark.parametrize("fmt", ["int8", "fp32", "e4m3"])
def test_so_they_have_with_fused_operations_at_hand(fmt, tmp_path):
    policy = perceptron([17, 64, 64, 6], hidden=Activation.TANH, decision=Decision.CLIP)
    observations = np.random.default_rng(0).standard_normal((300, 17)).astype(np.float32)
    ways = (("-std=c99",), ("-std=gnu11", "-ffp-contract=off", "-DPOLICY_CONTRACT_OFF"))
    check(policy, fmt, observations, tmp_path, ways=[(*flags, "-O3", "-march=native") for flags in ways])


def test_a_header_that_would_have_other_bits_does_not_compile(tmp_path):
    text = c_header(PackedPolicy.of(perceptron([3, 4, 2]), "int8"))
    for flags in (("-std=c99", "-ffast-math"), ("-std=gnu11", "-D__FP_FAST_FMAF=1")):
        with pytest.raises(subprocess.CalledProcessError):
            Compiled(text, tmp_path, discrete=False, flags=flags)


def compiles(text, folder, *flags):
    """Whether gcc takes a header; the test is skipped where gcc does not know the flags."""
    (folder / "policy.h").write_text(text)
    for name, source in (("flags", "int flags;"), ("policy", '#include "policy.h"')):
        (folder / f"{name}.c").write_text(source + "\n")
        command = ["gcc", *flags, "-ffreestanding", "-fsyntax-only", "-Wno-unused-function", folder / f"{name}.c"]
        taken = subprocess.run(command, check=False, capture_output=True).returncode == 0
        if name == "flags" and not taken:
            pytest.skip(f"this gcc has no {' '.join(flags)}")
    return taken


@pytest.mark.parametrize("standard", ["-std=c99", "-std=gnu11"])
@pytest.mark.parametrize("machine", ["-march=sapphirerapids", "-march=x86-64"])
def test_a_header_compiles_for_processors_that_compute_float16(standard, machine, tmp_path):
    text = c_header(PackedPolicy.of(perceptron([3, 4, 2]), "int8"))
    assert compiles(text, tmp_path, standard, machine, "-ffp-contract=off", "-DPOLICY_CONTRACT_OFF")


def test_a_header_does_not_compile_where_float_is_computed_in_more_bits(tmp_path):
    text = c_header(PackedPolicy.of(perceptron([3, 4, 2]), "int8"))
    assert not compiles(text, tmp_path, "-std=c99", "-m32", "-mno-sse", "-mfpmath=387")


def test_weights_take_the_bytes_of_their_format(tmp_path):
    policy = perceptron([64, 64, 64, 4])
    sizes = {}
    for fmt in ("fp32", "int8", "int4"):
        Compiled(c_header(PackedPolicy.of(policy, fmt)), tmp_path, discrete=False)
        listed = subprocess.run(["nm", "-S", tmp_path / "policy.so"], check=True, capture_output=True, text=True)
        rows = [line.split() for line in listed.stdout.splitlines() if "policy_weights" in line]
        sizes[fmt] = sum(int(row[1], 16) for row in rows)
    assert sizes["fp32"] == 4 * sizes["int8"] == 8 * sizes["int4"] == 4 * (64 * 64 * 2 + 64 * 4)


@pytest.mark.parametrize("fmt", ["fp16", "mxfp4", "posit8", "int8_asym", "int12"])
def test_other_formats_are_refused(fmt):
    with pytest.raises(RunError, match=r"a C header holds weights of fp32, .* got"):
        c_header(PackedPolicy.of(perceptron([8, 4, 2]), fmt))


def test_sums_that_could_overflow_are_refused():
    with pytest.raises(RunError, match="adds 70000 products"):
        c_header(PackedPolicy.of(perceptron([70000, 2]), "int8"))
