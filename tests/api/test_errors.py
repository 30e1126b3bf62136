"""The one table from errors to HTTP."""

from __future__ import annotations

import inspect

import pytest

from calculet_trio import errors
from calculet_trio.api.errors import http_error, is_defect, plain, unwrapped


def test_every_class_that_a_client_may_meet_has_a_row() -> None:
    met = {
        errors.InvalidRequest("x"): 400,
        errors.ContextLengthExceeded(prompt_tokens=2, limit_tokens=1): 400,
        errors.KeyRefused(): 401,
        errors.NotPermitted("x"): 403,
        errors.ModelNotFound("x", served=()): 404,
        errors.CapacityExceeded("x", code="c"): 429,
        errors.ServiceUnavailable("x", code="c"): 503,
        errors.GenerationFailed("x", retryable=True): 503,
        errors.GenerationFailed("x", retryable=False): 500,
    }
    for error, status in met.items():
        assert http_error(error).status == status
        assert not is_defect(error)
    abstract = {errors.CalculetError, errors.RequestRefused}
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    operators = {kind for kind in classes if issubclass(kind, errors.OperatorError)}
    assert classes - abstract - operators == {type(error) for error in met}


def test_what_a_nursery_wrapped_is_the_same_error() -> None:
    inner = errors.CapacityExceeded("full", code="queue_full")
    group = ExceptionGroup("a", [ExceptionGroup("b", [ValueError("x"), inner])])
    assert unwrapped(group) is inner
    assert http_error(group).status == 429


def test_anything_else_is_a_defect_that_says_nothing() -> None:
    assert is_defect(KeyError("secret"))
    assert http_error(KeyError("secret")) == plain(500)


@pytest.mark.parametrize("status", [500, 501, 505])
def test_what_would_fail_again_must_not_be_retried(status: int) -> None:
    """CHOICES.md: retry."""
    assert plain(status).headers["x-should-retry"] == "false"


def test_a_status_without_a_row_is_told_as_its_family() -> None:
    assert (plain(418).status, plain(418).code) == (418, "bad_request")
    assert (plain(599).status, plain(599).code) == (599, "internal_error")
