"""A test of several values that is one test: it asks for each in turn, and its failure names all that failed."""

import inspect
from functools import wraps

import pytest


def each(names, values):
    """Calls a test with each of some values, as ``pytest.mark.parametrize`` does for a test of its own each.

    A value that is skipped skips no other one; ``monkeypatch`` is a new one for each.

    Args:
        names: of the arguments: a text for one, or a tuple.
        values: those of the argument; of several, tuples.
    """
    values = list(values)
    assert values
    assert not any(isinstance(value, type(pytest.param())) for value in values), "no marks, since it is one test"
    several = isinstance(names, tuple)
    given = [dict(zip(names, value, strict=True)) if several else {names: value} for value in values]

    def decorate(test):
        @wraps(test)
        def all_of_them(**arguments):
            failed, skipped = [], []
            for mine in given:
                with pytest.MonkeyPatch.context() as patch:
                    own = {"monkeypatch": patch} if "monkeypatch" in arguments else {}
                    try:
                        test(**arguments | own | mine)
                    except pytest.skip.Exception as why:
                        skipped.append(why)
                    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                        error.add_note(f"with {', '.join(f'{name} = {value}' for name, value in mine.items())}")
                        failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(given)} failed", failed)
            if len(skipped) == len(given):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [argument for name, argument in signature.parameters.items() if name not in given[0]]
        all_of_them.__signature__ = signature.replace(parameters=left)
        return all_of_them

    return decorate
