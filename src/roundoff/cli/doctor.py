"""The command that checks an installation."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from roundoff.cli.options import AsJson, say, say_json

_VERIFIED = ("e5m10", "mxfp4")  # a float, which has special loops, and a format of blocks
# A format of each family that has a kernel for devices.
_OF_KERNELS = (
    "e5m10",
    "q4.6",
    "posit16",
    "lns16_8",
    "e8m0fnu",
    "nf4",
    "int8",
    "int8_g16",
    "mxfp4",
    "nvfp4",
    "fp8_e4m3_row",
)
_GIB = 1 << 30


def doctor(
    *,
    bits: Annotated[
        bool,
        typer.Option("--bits", help="Also compare samples of operators and compiled steps with eager bits: seconds."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this installation: versions, extras, devices, kernels, caches. Exit status 1: something is broken."""
    findings = _examine(bits=bits)
    if as_json:
        say_json(findings)
    else:
        say(_format_findings(findings))
    if findings["broken"]:
        raise typer.Exit(1)


def _examine(*, bits: bool) -> dict[str, Any]:
    """Collects all findings as JSON values; ``broken`` lists the failures of parts that should work."""
    from importlib.metadata import version

    import torch

    from roundoff import __version__
    from roundoff.extras import EXTRAS
    from roundoff.formats import folder_of_loops
    from roundoff.origin import origin
    from roundoff.simulate import (
        check_bits,
        folder_of_natives,
        folder_of_programs,
        reason_against_compiling,
        reason_against_native,
    )

    made_with = origin()
    broken: list[str] = []
    devices: list[dict[str, Any]] = [{"device": "cpu"}]
    for name in (f"cuda:{i}" for i in range(torch.cuda.device_count())):
        properties = torch.cuda.get_device_properties(name)
        devices.append({"device": name, "model": properties.name, "memory": properties.total_memory})
    # The version of PyTorch, whether it was checked, and the private names that it lacks
    from roundoff.pytorch.private_names import AGENTS, COMPILED, FORMATS, SIMULATIONS, missing_names
    from roundoff.pytorch.versions import COMPILING, SIMULATING, installed, release

    current = release(installed())
    parts = (FORMATS, SIMULATIONS, COMPILED, AGENTS)
    pytorch = {
        "simulations_checked": current in SIMULATING,
        "compiled_checked": current in COMPILING,
        "missing_names": [name for part in parts for name in missing_names(part)],
    }
    checks = check_bits() if bits else []
    broken += [
        f"{check.what}: other bits with this PyTorch in {', '.join(check.differing)}; please report it"
        for check in checks
        if check.differing
    ]
    return {
        "roundoff": {
            "version": __version__,
            "folder": str(Path(__file__).parents[1]),
            "commit": made_with.get("commit"),
        },
        "versions": {name: made_with[name] for name in ("python", "torch", "numpy")}
        | {name: version(name) for name in ("numba", "pandas")},
        "pytorch": pytorch,
        "missing": {
            extra: [name for name in packages if find_spec(name) is None] for extra, packages in EXTRAS.items()
        },
        "processor": made_with["processor"],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "devices": devices,
        "kernels": [_kernels(device["device"], broken) for device in devices],
        # A machine without a compiler does not count as broken
        "compiler": {"path": shutil.which(os.environ.get("CXX") or "g++"), "reason": reason_against_compiling()},
        "native": {"reason": reason_against_native() or None},
        "caches": [
            _cache("loops", folder_of_loops),
            _cache("programs", folder_of_programs),
            _cache("native", folder_of_natives),
        ],
        "bits": [check._asdict() for check in checks] if bits else None,
        "broken": broken,
    }


def _kernels(device: str, broken: list[str]) -> dict[str, Any]:
    """Checks whether rounding on a device is right to the bit; adds failures to ``broken``."""
    from roundoff.formats import verify

    try:
        report = verify(_VERIFIED, device, quick=True)
        tried, replaced = _tried_kernels(device)
    except Exception as error:  # noqa: BLE001  a driver or a compiler may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        broken.append(f"rounding on {device} fails: {reason}")
        return {"device": device, "cases": 0, "differing": None, "tried": 0, "replaced": []}
    differing = sum(check.differing for check in report.checks)
    if differing:
        broken.append(
            f"rounding on {device} is wrong: `roundoff verify --device {device}` tells where; please report it"
        )
    broken += [f"the kernel that rounds to {kernel}; the CPU replaces it" for kernel in replaced]
    cases = sum(check.cases for check in report.checks)
    return {"device": device, "cases": cases, "differing": differing, "tried": tried, "replaced": replaced}


def _tried_kernels(device: str) -> tuple[int, list[str]]:
    """Returns the number of kinds of kernels that were compared with the CPU, and descriptions of the wrong ones.

    The CPU has loops in place of kernels: none is compared.
    """
    if device == "cpu":
        return 0, []
    import torch

    from roundoff.formats import Format, RandomBits, Rounding, round, tried_kinds

    x = torch.ones(2, 64, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller reports wrong kernels
        for fmt in map(Format.parse, _OF_KERNELS):
            for view in (x, x.t()):
                round(view, fmt)
                round(view, fmt, rounding=Rounding.STOCHASTIC, random=RandomBits(1))
    kinds = {kind: wrong for kind, wrong in tried_kinds().items() if kind.device == x.device}
    return len(kinds), [f"{kind}, {wrong}" for kind, wrong in kinds.items() if wrong]


def _cache(kind: str, folder_of: Callable[[], Path | None]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the result reports a missing folder
        folder = folder_of()
    sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_file()] if folder else []
    return {"kind": kind, "folder": str(folder) if folder else None, "files": len(sizes), "bytes": sum(sizes)}


def _format_findings(findings: dict[str, Any]) -> str:
    """Formats the checks and their findings as lines."""
    from roundoff.extras import INSTALL
    from roundoff.formats import aligned

    package = findings["roundoff"]
    commit = f" ({package['commit']})" if package["commit"] else ""
    rows = [("roundoff", f"{package['version']} in {package['folder']}{commit}")]
    rows += findings["versions"].items()
    rows.append(("this PyTorch", _format_pytorch(findings["pytorch"])))
    for extra, missing in findings["missing"].items():
        advice = f"no {', '.join(missing)}: {INSTALL.format(extra)}"
        rows.append((f"extra {extra}", advice if missing else "installed"))
    numbers = f"{findings['cores']} cores, threads of PyTorch: {findings['threads']}"
    rows.append(("processor", f"{findings['processor']}, {numbers}"))
    for device, kernels in zip(findings["devices"], findings["kernels"], strict=True):
        model = f"{device['model']}, {device['memory'] / _GIB:.0f} GiB; " if "model" in device else ""
        rounding = "rounds right to the bit" if kernels["differing"] == 0 else "BROKEN, see below"
        kinds = f"; {kernels['tried']} kinds of kernels compared with the CPU" if kernels["tried"] else ""
        rows.append((f"device {device['device']}", f"{model}{rounding} ({kernels['cases']:,} cases{kinds})"))
    compiler = findings["compiler"]
    rows.append(("C++ compiler", compiler["path"] or "none: steps run eagerly, and the backend qtorch does not run"))
    rows.append(("compiled steps", compiler["reason"] or "work"))
    reason = findings["native"]["reason"]
    rows.append(("plain operations", f"run in Python: {reason}" if reason else "run in C++"))
    for cache in findings["caches"]:
        content = f"{cache['folder']}, {cache['files']} files, {cache['bytes'] / (1 << 20):,.1f} MiB"
        rows.append((f"cache of {cache['kind']}", content if cache["folder"] else "none: every process compiles again"))
    for check in findings["bits"] or ():
        bits = f"{len(check['differing'])} samples differ" if check["differing"] else "the bits they should have"
        result = f"not compared: {check['reason']}" if check["reason"] else f"{bits} ({check['compared']:,} numbers)"
        rows.append((f"bits of {check['what']}", result))
    verdict = [f"BROKEN: {failure}" for failure in findings["broken"]] or ["nothing is broken"]
    return "\n".join([aligned(rows, (0, 1)), *verdict])


def _format_pytorch(pytorch: dict[str, Any]) -> str:
    simulations = (
        "simulations were checked with it" if pytorch["simulations_checked"] else "NOT CHECKED with simulations"
    )
    compiled = "also compiled steps" if pytorch["compiled_checked"] else "compiled steps were not, and run eagerly"
    missing = f"; it has no {', '.join(pytorch['missing_names'])}" if pytorch["missing_names"] else ""
    return f"{simulations}; {compiled}{missing}"
