"""The private names of PyTorch that are used here: the purpose of each, and the effect of its absence.

A version of PyTorch may drop or change any of them. The imports are made where the names are used, since some take
seconds; this table has all of them, which a test compares with the sources. Besides names, three things depend on the
version:

- the tables of ATen operations (``simulate/aten/tables.py``, ``simulate/composites/``, ``simulate/rounded_once/``,
  ``simulate/compiling/graphs/written_operations.py``). An operation that no table has is run by its kernel, and its
  results are rounded, which is right for every new operation that computes; a name that a version lacks is passed over;
- the C++ of plain operations (``simulate/native/``), compiled against PyTorch's headers. Where that fails, operations
  run in Python, with the same bits, and a warning says so;
- the bits of PyTorch's kernels themselves. Accumulators and exact results do not depend on them, and all else does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATS, SIMULATIONS, COMPILED, AGENTS = "formats", "simulations", "compiled steps", "agents"


class PrivateName(NamedTuple):
    """One name, or what begins with it and a point."""

    part: str
    """What cannot do without it: formats, simulations, compiled steps or agents."""
    purpose: str
    without: str


_FAILS = "the import fails"
_EAGER = "steps run eagerly, with a warning"

NAMES: dict[str, PrivateName] = {
    # Modes and keys of the dispatcher.
    "torch._C._TorchDispatchModeKey": PrivateName(FORMATS, "names the modes of tracing", _FAILS),
    "torch._C._get_dispatch_mode": PrivateName(FORMATS, "finds the mode that traces", _FAILS),
    "torch._C._len_torch_dispatch_stack": PrivateName(FORMATS, "tells whether any mode is at work", _FAILS),
    "torch._C._get_dispatch_stack_at": PrivateName(SIMULATIONS, "has one of the modes", _FAILS),
    "torch._C._pop_torch_dispatch_stack": PrivateName(FORMATS, "rounds apart from the modes around", _FAILS),
    "torch._C._push_on_torch_dispatch_stack": PrivateName(FORMATS, "puts the modes back", _FAILS),
    "torch._C._disabled_torch_dispatch_impl": PrivateName(
        FORMATS, "tells a subclass that has memory from a wrapper", "wrappers would be taken for tensors with memory"
    ),
    "torch._C.DispatchKey": PrivateName(SIMULATIONS, "runs operators that take functions, and attention", _FAILS),
    "torch._C._ForceDispatchKeyGuard": PrivateName(
        SIMULATIONS,
        "takes the layer kernel of transformers apart outside of autograd, and puts autograd back after a failed trace",
        "primitive granularity fails there, and so do compiled steps",
    ),
    "torch._C._dispatch_tls_local_exclude_set": PrivateName(SIMULATIONS, "as above: what is excluded", "as above"),
    "torch._C._dispatch_tls_local_include_set": PrivateName(SIMULATIONS, "as above: what is included", "as above"),
    "torch._C._dispatch_has_kernel_for_dispatch_key": PrivateName(
        SIMULATIONS, "tells operations that PyTorch makes of others from those with a kernel", _FAILS
    ),
    "torch._C._dispatch_get_all_op_names": PrivateName(
        SIMULATIONS,
        "lists the operations that C++ is registered for",
        "entering a simulation fails; ROUNDOFF_NATIVE=0 helps",
    ),
    "torch._C._dispatch_keys": PrivateName(SIMULATIONS, "has the keys of a plain tensor", "as above"),
    "torch._C._set_grad_enabled": PrivateName(COMPILED, "switches autograd off faster than no_grad", "a step fails"),
    "torch._ops.OpOverload": PrivateName(SIMULATIONS, "is the type of an operation", _FAILS),
    "torch._ops.HigherOrderOperator": PrivateName(SIMULATIONS, "is the type of torch.cond and its like", _FAILS),
    "torch._higher_order_ops.scan.generic_scan": PrivateName(SIMULATIONS, "runs torch.scan step by step", "scan fails"),
    "torch.utils._python_dispatch.TorchDispatchMode": PrivateName(
        SIMULATIONS, "is the base class of simulations", _FAILS
    ),
    "torch.utils._python_dispatch._disable_current_modes": PrivateName(
        SIMULATIONS, "computes apart from all modes", _FAILS
    ),
    "torch.utils._python_dispatch._get_current_dispatch_mode": PrivateName(
        SIMULATIONS, "has the innermost mode", _FAILS
    ),
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": PrivateName(SIMULATIONS, "has all modes", _FAILS),
    "torch.utils._python_dispatch._pop_mode": PrivateName(SIMULATIONS, "takes a mode off the stack", _FAILS),
    "torch.utils._python_dispatch._push_mode": PrivateName(SIMULATIONS, "puts a mode on the stack", _FAILS),
    "torch.utils._pytree": PrivateName(SIMULATIONS, "walks through lists, tuples and dicts of tensors", _FAILS),
    # Autograd, functional transforms, special tensors.
    "torch._C._are_functorch_transforms_active": PrivateName(FORMATS, "tells whether torch.func transforms", _FAILS),
    "torch._C._is_view_replay_enabled": PrivateName(SIMULATIONS, "tells whether autograd repeats views", _FAILS),
    "torch._C._set_view_replay_enabled": PrivateName(SIMULATIONS, "has autograd repeat views", _FAILS),
    "torch._C._functorch": PrivateName(FORMATS, "tells and unwraps tensors that torch.func has wrapped", _FAILS),
    "torch._is_functional_tensor": PrivateName(FORMATS, "tells tensors without memory", "rounding fails"),
    "torch._prims_common.compute_elementwise_output_strides": PrivateName(
        FORMATS, "gives stand-ins the strides that rounding gives", _FAILS
    ),
    "torch.autograd.forward_ad._current_level": PrivateName(
        FORMATS, "tells whether forward mode is on", "rounding with a gradient fails"
    ),
    "torch.autograd.forward_ad._set_fwd_grad_enabled": PrivateName(
        SIMULATIONS, "keeps shadows out of forward mode", "shadows fail"
    ),
    "torch._C._autograd._get_sequence_nr": PrivateName(
        SIMULATIONS, "finds the forward operation of a derivative", "observers fail"
    ),
    "torch.autograd._get_sequence_nr": PrivateName(
        SIMULATIONS, "finds the module of a derivative", "rules for modules fail"
    ),
    "torch._C._current_autograd_node": PrivateName(
        SIMULATIONS, "tells which derivative runs", "observers and rules fail"
    ),
    "torch._C._current_graph_task_id": PrivateName(
        SIMULATIONS, "tells whether a backward pass runs", "rules for roles fail"
    ),
    "torch._debug_has_internal_overlap": PrivateName(
        COMPILED, "refuses arguments that overlap themselves", "a step fails"
    ),
    "torch._nested_tensor_from_mask": PrivateName(
        SIMULATIONS, "takes nested attention apart", "primitive granularity fails there"
    ),
    "torch.distributed.tensor.experimental.register_sharding": PrivateName(
        FORMATS, "lets each device round its part of a DTensor", "rounding a DTensor fails"
    ),
    "torch.distributed.tensor.DTensor._op_dispatcher": PrivateName(FORMATS, "as above", "as above"),
    # torch.compile and optimizers around a simulation.
    "torch._C._dynamo.eval_frame": PrivateName(SIMULATIONS, "tells whether torch.compile looks at frames", _FAILS),
    "torch._dynamo.eval_frame": PrivateName(
        SIMULATIONS, "has functions of torch.compile run eagerly in a simulation", "entering a simulation fails"
    ),
    "torch._disable_dynamo": PrivateName(SIMULATIONS, "keeps torch.compile out of entering and leaving", _FAILS),
    "torch.optim.optimizer._global_optimizer_pre_hooks": PrivateName(
        SIMULATIONS, "keeps the hook before steps the first one", _FAILS
    ),
    # Tracing and inductor.
    "torch._subclasses.fake_tensor": PrivateName(SIMULATIONS, "has the tensors without numbers of a trace", _FAILS),
    "torch.fx.experimental.proxy_tensor": PrivateName(SIMULATIONS, "traces a step", _FAILS),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": PrivateName(
        COMPILED, "refuses shapes that follow from numbers", _EAGER
    ),
    "torch.fx._lazy_graph_module": PrivateName(COMPILED, "writes a traced step as Python once", _EAGER),
    "torch._guards": PrivateName(COMPILED, "has inductor keep programs on disk", _EAGER),
    "torch._functorch.compile_utils.fx_graph_cse": PrivateName(COMPILED, "computes nothing twice", _EAGER),
    "torch._prims_common.elementwise_dtypes": PrivateName(COMPILED, "has the dtype of a population's result", _EAGER),
    "torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND": PrivateName(COMPILED, "as above", _EAGER),
    "torch.utils._foreach_utils._foreach_supported_types": PrivateName(
        COMPILED, "has optimizers step stand-ins by operations on lists, as they step tensors", _EAGER
    ),
    "torch.overrides._get_current_function_mode_stack": PrivateName(
        COMPILED, "tells whether tracing looks at functions", _EAGER
    ),
    "torch.overrides._pop_mode_temporarily": PrivateName(
        COMPILED, "has it not do so: modules would take another way", _EAGER
    ),
    "torch._inductor.async_compile": PrivateName(COMPILED, "compiles the loops of a program together", _EAGER),
    "torch._inductor.codecache": PrivateName(COMPILED, "loads loops; keeps headers in our folder", _EAGER),
    "torch._inductor.codegen.cpp.CppOverrides": PrivateName(COMPILED, "writes roundings of numbers", _EAGER),
    "torch._inductor.codegen.cpp.CppVecOverrides": PrivateName(COMPILED, "writes roundings of vectors", _EAGER),
    "torch._inductor.codegen.cpp_utils.DTYPE_TO_CPP": PrivateName(COMPILED, "has the C++ names of dtypes", _EAGER),
    "torch._inductor.codegen.triton.TritonKernel": PrivateName(
        COMPILED, "has Triton round each operation once", _EAGER
    ),
    "torch._inductor.compile_fx.compile_fx_inner": PrivateName(COMPILED, "compiles a graph", _EAGER),
    "torch._inductor.config": PrivateName(COMPILED, "switches off what changes bits", _EAGER),
    "torch._inductor.cpu_vec_isa.pick_vec_isa": PrivateName(COMPILED, "has the width of vectors", _EAGER),
    "torch._inductor.custom_graph_pass.CustomGraphPass": PrivateName(
        COMPILED, "keeps programs apart by our version", _EAGER
    ),
    "torch._inductor.decomposition.select_decomp_table": PrivateName(
        COMPILED, "takes operations apart without new bits", _EAGER
    ),
    "torch._inductor.graph": PrivateName(COMPILED, "calls kernels for complex numbers", _EAGER),
    "torch._inductor.ir": PrivateName(COMPILED, "writes loops of rounding", _EAGER),
    "torch._inductor.loop_body.LoopBody": PrivateName(COMPILED, "goes on where a fused loop reads nothing", _EAGER),
    "torch._inductor.lowering": PrivateName(COMPILED, "calls kernels where loops would have other bits", _EAGER),
    "torch._inductor.runtime.cache_dir_utils.default_cache_dir": PrivateName(
        COMPILED, "tells a folder that the user has chosen from PyTorch's own", _EAGER
    ),
    "torch._inductor.scheduler.SchedulerNode": PrivateName(COMPILED, "keeps reads behind writes", _EAGER),
    "torch._inductor.virtualized": PrivateName(COMPILED, "writes loops of rounding", _EAGER),
    # Lists of tensors, and several learners.
    "torch._foreach_add_": PrivateName(AGENTS, "adds lists of tensors at once", _FAILS),
    "torch._foreach_addcdiv_": PrivateName(AGENTS, "as above", _FAILS),
    "torch._foreach_addcmul": PrivateName(AGENTS, "as above", "an update fails"),
    "torch._foreach_addcmul_": PrivateName(AGENTS, "as above", _FAILS),
    "torch._foreach_copy_": PrivateName(AGENTS, "as above", "a population fails"),
    "torch._foreach_mul_": PrivateName(AGENTS, "as above", _FAILS),
    "torch._C._distributed_c10d.FileStore": PrivateName(AGENTS, "has learners meet by a file", "several learners fail"),
    "torch.distributed.distributed_c10d._set_pg_timeout": PrivateName(
        AGENTS, "lets learners wait, before PyTorch 2.14", "several learners fail"
    ),
}


def missing_names(part: str) -> Iterator[str]:
    """Yields the names of a part that the installed version of PyTorch has not.

    Args:
        part: formats, simulations, compiled steps or agents.
    """
    for name, about in NAMES.items():
        if about.part == part and not _is_there(name):
            yield name


def _is_there(name: str) -> bool:
    """Whether the longest part of a name that can be imported has the rest."""
    head, rest = name, list[str]()
    while True:
        try:
            found: Any = import_module(head)
            break
        except ImportError:
            head, _, last = head.rpartition(".")
            rest.insert(0, last)
            if not head:
                return False
    for attribute in rest:
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True
