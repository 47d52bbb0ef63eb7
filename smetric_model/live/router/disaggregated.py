"""Two-stage dispatch: the prompt is prefilled in one pool, the answer decoded in another.

The prefill instance is chosen by the policy on unprefilled tokens, the decode instance by free KV
cache.  If a stage fails before the first byte, both are run again, elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.live.router.body_edit import with_member
from smetric_model.live.router.exchange import Failure
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.http_errors import HttpError, no_answer

if TYPE_CHECKING:
    from smetric_model.live.router.exact import ExactPrompt
    from smetric_model.live.router.exchange import Exchange
    from smetric_model.live.router.question import Question
    from smetric_model.live.router.service import Service

__all__ = ["freest", "prefill_body", "serve_disaggregated"]

#: API -> members that limit the answer's length
_LIMITS = {
    "chat": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
}
#: APIs whose requests and answers carry ``kv_transfer_params`` (vLLM)
_HANDS_OVER = ("chat", "completions")
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def prefill_body(api: str, body: dict[str, Any], hands_over: bool) -> bytes:
    """Return the body of the first stage: the same prompt, one token, no stream.

    Parameters
    ----------
    api : str
        Which API.
    body : dict
        The client's body.
    hands_over : bool
        Whether the engine is asked to keep the KV cache for another.
    """
    made = {key: value for key, value in body.items() if key != "stream_options"}
    made["stream"] = False
    first, *others = _LIMITS[api]
    made[first] = 1
    for name in others:
        if name in made:
            made[name] = 1
    if made.get("min_tokens"):
        made["min_tokens"] = 1
    if hands_over:
        made["kv_transfer_params"] = _REMOTE_DECODE
    return orjson.dumps(made)


def freest(instances: Sequence[Instance], tried: Collection[Instance]) -> Instance | None:
    """Return the instance with the most free KV cache; the least loaded of equals, then the first.

    Instances whose capacity is not known come after those with anything free.
    """
    able = [item for item in instances if item.takes_requests and item not in tried]
    return max(able, key=lambda item: (item.free_kv_tokens, -item.load.requests), default=None)


async def serve_disaggregated(
    service: Service, exchange: Exchange, question: Question, prompt: ExactPrompt | None
) -> None:
    """Serve a request in two stages.

    Raises
    ------
    HttpError
        If no pair of instances has given an answer.
    """
    settings = service.config.disaggregated
    hands_over = settings.connector == "nixl"
    body = question.body
    if question.api is None or body is None or (hands_over and question.api not in _HANDS_OVER):
        # Nothing to hand over with: a decode instance does all of it.
        await _decode_only(service, exchange, question)
        return
    prefill, decode = service.fleet.pool("prefill"), service.fleet.pool("decode")
    decodes_tried: list[Instance] = []
    failure: Failure | None = None
    sent = prefill_body(question.api, orjson.loads(exchange.body), hands_over)
    for left in range(settings.retries, -1, -1):
        choice = service.choose(exchange, question, prefill, prompt)
        if choice is None:
            break
        got = await exchange.collect(
            choice.instance,
            sent,
            unprefilled_tokens=choice.unprefilled_tokens,
            held_tokens=choice.request.prompt_tokens,
        )
        if isinstance(got, Failure):
            failure = service.failed(exchange, choice.instance, got)
            if failure.final:
                break
            continue
        status, headers, answer = got
        if status in service.retry_statuses and left:
            failure = Failure(f"status_{status}", status)
            service.failed(exchange, choice.instance, failure)
            continue
        if not 200 <= status < 300:
            exchange.pass_on(status, headers, answer)  # the client's own mistake, or the last word
            return
        service.prefilled(exchange, answer)
        second = exchange.body
        if hands_over:
            second = _handed_over(exchange.body, answer)
        target = freest(decode, decodes_tried)
        if target is None:
            raise HttpError(503, "no_instance", "no decode instance takes requests")
        exchange.decoder = target
        failure = await exchange.attempt(
            target,
            unprefilled_tokens=0,
            held_tokens=choice.request.prompt_tokens,
            may_retry=left > 0 and freest(decode, [*decodes_tried, target]) is not None,
            body=second,
        )
        if failure is None:
            return
        service.metrics.failed(target.name, failure.word)
        decodes_tried.append(target)
        if failure.final:
            break
    raise no_answer(failure, exchange.attempts)


def _handed_over(data: bytes, answer: bytes) -> bytes:
    """Put the prefill engine's ``kv_transfer_params`` into the body of the second stage."""
    try:
        told = orjson.loads(answer)
        parameters = told.get("kv_transfer_params")
        body = orjson.loads(data)
    except (orjson.JSONDecodeError, AttributeError):
        parameters = None
    if not isinstance(parameters, dict):
        raise HttpError(
            502,
            "no_kv_transfer",
            "the prefill engine's answer has no kv_transfer_params; is its KV connector set up?",
        )
    return with_member(data, body, "kv_transfer_params", parameters)


async def _decode_only(service: Service, exchange: Exchange, question: Question) -> None:
    pool = service.fleet.pool("decode")
    failure: Failure | None = None
    while exchange.attempts < service.config.retry.attempts:
        target = freest(pool, exchange.tried)
        if target is None:
            break
        exchange.decoder = target
        failure = await exchange.attempt(
            target,
            unprefilled_tokens=question.request.prompt_tokens,
            held_tokens=question.request.prompt_tokens,
            may_retry=exchange.attempts + 1 < service.config.retry.attempts
            and freest(pool, [*exchange.tried, target]) is not None,
        )
        if failure is None:
            return
        service.failed(exchange, target, failure)
        if failure.final:
            break
    raise no_answer(failure, exchange.attempts)
