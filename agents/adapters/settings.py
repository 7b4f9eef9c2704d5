"""The keys of runs with an algorithm of another library; imports neither the library nor PyTorch.

Options may name classes from a fixed list: nothing else named in a file is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from roundoff.errors import check_name

from ..config.fields import Panel, key, plain_data
from ..config.rules import KeyRule, complaint
from ..config.train_config import TrainConfig

_AGENT_KEYS = ("native", "keep_networks", "random_start", "clip_rewards")
"""Keys that only roundoff's own agents have."""
_LARGEST_SEED = 2**32 - 1
"""The largest seed of NumPy's global generator, which the libraries seed."""


def check_options(options: Any) -> dict[str, Any]:
    """Returns options as plain data; raises ValueError for anything else."""
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"options is a mapping of names to values, got {options!r}")
    plain: dict[str, Any] = plain_data("options", options)
    check_parts(plain)
    return plain


class AdapterConfig(TrainConfig):
    """A run of an algorithm of another library, unchanged."""

    acts: ClassVar[tuple[str, ...]] = ("continuous", "discrete")
    reason_not_compiled: ClassVar[str | None] = "its algorithm is another library's"
    rules: ClassVar[tuple[KeyRule, ...]] = (
        KeyRule(lambda c: complaint(c.check_names_of_options), "options", "{found}"),
        KeyRule(lambda c: next((name for name in _AGENT_KEYS if getattr(c, name)), None), "options",
             "{found} is for roundoff's own agents, not for {c.algorithm}; leave it out"),
        KeyRule(lambda c: c.seed + c.environments > _LARGEST_SEED, "seed",
             "seed must be below 2^32 - environments for {c.algorithm}, got {c.seed}"),
        # -1 stands for an unknown number of steps.
        KeyRule(lambda c: c.before_learning() if (c.before_learning() or -1) >= c.transitions else None, "steps",
             "nothing would be learned: {c.algorithm} takes {found} steps before it learns (its learning_starts), and"
             " the run has {c.transitions}; allowed are more steps, or options.learning_starts below {c.transitions}"),
    )  # fmt: skip
    only: ClassVar[Mapping[str, str]]
    """The kind of actions of algorithms that are limited to one kind."""
    places: ClassVar[Mapping[str, tuple[str, ...]]]
    """The algorithms by name, and the classes that options are handed to: ``<package>.<module>:<class>``."""
    own_options: ClassVar[tuple[str, ...]]
    """Options of the adapter, which are not arguments of a constructor."""
    own_defaults: ClassVar[Mapping[str, Any]] = {}
    """The adapter's defaults for some of its options."""
    set_by_run: ClassVar[Mapping[str, str]]
    """Arguments of constructors that the run passes, with the key of each."""

    options: Annotated[dict[str, Any], BeforeValidator(check_options)] = key(
        {},
        "Arguments of the library's constructor, under the library's names; see docs/libraries.md. Names such as"
        " `roundoff:HAdam` select classes.",
    )

    @property
    def name(self) -> str:
        """The name of the algorithm, as the library calls it."""
        return self.algorithm.partition(":")[2]

    @property
    def package(self) -> str:
        """The package that is imported to run it."""
        return self.places[self.name][0].partition(".")[0]

    @property
    def kinds_of_actions(self) -> tuple[str, ...]:
        """The kinds of actions that the algorithm can choose."""
        return (self.only[self.name],) if self.name in self.only else self.acts

    def check_algorithm(self) -> None:
        """Raises ValueError if the library does not have an algorithm of that name."""
        library = self.library()
        check_name("algorithm", self.algorithm, [f"{library}:{name}" for name in self.places])

    def check_names_of_options(self) -> None:
        """Raises ValueError for an option that is unknown to the library's constructor, or that the run sets."""
        constructors = [parameters(place) for place in self.places.get(self.name, ())]
        known = {*self.own_options, *(name for names in constructors for name in names or ())} - {*self.set_by_run}
        for option in self.options:
            if option in self.set_by_run:
                raise ValueError(f"options.{option} is set by the run: {self.set_by_run[option]}")
            if constructors and None not in constructors:  # Without the library, its options are unknown.
                check_name(f"option of {self.algorithm}", option, sorted(known))

    @property
    def steps_before_learning(self) -> int:
        """Agent steps before the first update; 0 if unknown."""
        return self.before_learning() or 0

    def before_learning(self) -> int | None:
        """``learning_starts``; None where it is missing or unknown."""
        starts = self.options.get("learning_starts", self.own_defaults.get("learning_starts"))
        if starts is None and self.name in self.places:
            starts = default(self.places[self.name][0], "learning_starts")
        return starts if type(starts) is int else None

    @classmethod
    def library(cls) -> str:
        """Returns the name of the library, the part of ``algorithm`` before the colon."""
        default: str = cls.model_fields["algorithm"].default
        return default.partition(":")[0]


_SB3_PACKAGES = {
    **dict.fromkeys(("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"), "stable_baselines3"),
    **dict.fromkeys(("CrossQ", "QRDQN", "RecurrentPPO", "TQC", "TRPO"), "sb3_contrib"),
}


class SB3Config(AdapterConfig):
    """An algorithm of Stable-Baselines3 or of sb3-contrib; the defaults are theirs."""

    panels: ClassVar[Mapping[str, Panel]] = {
        "loss": Panel("loss"),
        "value_loss": Panel("loss of the values", log=True),
        "approx_kl": Panel("KL divergence of an update"),
    }
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        name: (f"{package}.{module}.{module}:{name}",)  # Each algorithm has a folder and a file of the same name.
        for name, package in sorted(_SB3_PACKAGES.items())
        for module in ["ppo_recurrent" if name == "RecurrentPPO" else name.lower()]
    }
    only: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("DQN", "QRDQN"), "discrete"),
        **dict.fromkeys(("CrossQ", "DDPG", "SAC", "TD3", "TQC"), "continuous"),
    }
    own_options: ClassVar[tuple[str, ...]] = ()
    set_by_run: ClassVar[Mapping[str, str]] = {
        "env": "say task",
        "seed": "say seed",
        "device": "say device",
        "verbose": "a run prints nothing",
        "tensorboard_log": "the run's folder has tensorboard/",
        "_init_setup_model": "it is always done",
    }

    algorithm: str = key("sb3:PPO", "The algorithm. Each algorithm has its own keys.")


# An algorithm and its policy have separate constructors.
_TIANSHOU = {
    "C51": ("c51:C51", "c51:C51Policy"),
    "DQN": ("dqn:DQN", "dqn:DiscreteQLearningPolicy"),
    "IQN": ("iqn:IQN", "iqn:IQNPolicy"),
    "QRDQN": ("qrdqn:QRDQN", "dqn:DiscreteQLearningPolicy"),
    "Rainbow": ("rainbow:RainbowDQN", "c51:C51Policy"),
}


class TianshouConfig(AdapterConfig):
    """A Q-learning algorithm of Tianshou; the defaults are Tianshou's where it has any."""

    panels: ClassVar[Mapping[str, Panel]] = {"loss": Panel("loss")}
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        name: tuple(f"tianshou.algorithm.modelfree.{place}" for place in places) for name, places in _TIANSHOU.items()
    }
    acts: ClassVar[tuple[str, ...]] = ("discrete",)
    only: ClassVar[Mapping[str, str]] = {}
    own_options: ClassVar[tuple[str, ...]] = (
        "hidden_sizes", "optimizer_class", "optimizer_kwargs", "buffer_size", "learning_starts", "batch_size",
        "update_step_num_gradient_steps_per_sample", "collection_step_num_env_steps", "alpha", "beta", "noisy_std",
    )  # fmt: skip
    own_defaults: ClassVar[Mapping[str, Any]] = {"learning_starts": 1000}
    set_by_run: ClassVar[Mapping[str, str]] = {
        "policy": "the algorithm says which",
        "model": "say hidden_sizes",
        "optim": "say optimizer_class and optimizer_kwargs",
        "action_space": "say task",
        "observation_space": "say task",
    }

    algorithm: str = key("tianshou:DQN", "The algorithm. Each algorithm has its own keys.")


CONFIGS: dict[str, type[AdapterConfig]] = {config.library(): config for config in (SB3Config, TianshouConfig)}


def adapted() -> tuple[str, ...]:
    """Returns all algorithms of other libraries, by their names in configs."""
    return tuple(f"{library}:{name}" for library, config in CONFIGS.items() for name in config.places)


def parameters(place: str) -> tuple[str, ...] | None:
    """Returns the names of the constructor parameters of a class.

    Args:
        place: ``<package>.<module>:<class>``.

    Returns:
        The parameters of its constructor, without ``self``; None if the package is not installed or lacks the class.
    """
    signature = _constructor(place)
    if signature is None:
        return None
    return tuple(arg.arg for arg in (*signature.args, *signature.kwonlyargs) if arg.arg != "self")


def default(place: str, name: str) -> Any:
    """Returns the default of a parameter of a class; None if it is unknown or not a literal."""
    signature = _constructor(place)
    if signature is None:
        return None
    # The last positional parameters have the defaults; a keyword without a default has None in ``kw_defaults``.
    defaults = dict(zip((arg.arg for arg in reversed(signature.args)), reversed(signature.defaults), strict=False))
    defaults |= {arg.arg: node for arg, node in zip(signature.kwonlyargs, signature.kw_defaults, strict=True) if node}
    node = defaults.get(name)
    return node.value if isinstance(node, ast.Constant) else None


@cache
def _constructor(place: str) -> ast.arguments | None:
    """Returns the parameters of the constructor of a class, parsed from its file; None if it is not found."""
    module, _, name = place.partition(":")
    package, *rest = module.split(".")
    spec = find_spec(package)  # Without dots: ``find_spec`` of a submodule would import the package.
    folders = spec.submodule_search_locations if spec else None
    if not folders:  # The package is not installed.
        return None
    try:
        tree = ast.parse(Path(folders[0]).joinpath(*rest).with_suffix(".py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    return next((function.args for function in functions if function.name == "__init__"), None)


_PLACES = {
    **{f"roundoff:{name}": f"..optimizers.{name.lower()}:{name}" for name in ("Adam", "HAdam")},
    "roundoff:PlanesExtractor": ".sb3:PlanesExtractor",
    **{f"torch:{name}": f"torch.optim:{name}" for name in ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD")},
    **{f"torch:{name}": f"torch.nn:{name}" for name in ("ELU", "GELU", "LeakyReLU", "ReLU", "SiLU", "Tanh")},
    "sb3:RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like:RMSpropTFLike",
}
_PREFIXES = tuple(sorted({name.partition(":")[0] + ":" for name in _PLACES}))  # Other texts are plain options.


def check_parts(options: Any) -> None:
    """Raises ValueError if a text in ``options`` begins like the name of a part, but does not name one."""
    if isinstance(options, str) and options.startswith(_PREFIXES):
        check_name("part", options, sorted(_PLACES))
    for value in options.values() if isinstance(options, dict) else options if isinstance(options, list) else ():
        check_parts(value)


def with_parts(options: Any) -> Any:
    """Returns ``options`` with the classes in place of their names."""
    if isinstance(options, dict):
        return {name: with_parts(value) for name, value in options.items()}
    if isinstance(options, list):
        return [with_parts(value) for value in options]
    if isinstance(options, str) and options in _PLACES:
        module, _, name = _PLACES[options].partition(":")
        return getattr(import_module(module, __package__), name)  # Only from the fixed list.
    return options
