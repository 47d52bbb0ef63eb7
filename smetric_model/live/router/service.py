"""The parts of a running router, put together: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.errors import SpecError
from smetric_model.live.router.admin import Admin, read_token
from smetric_model.live.router.approximate import ApproximateIndex
from smetric_model.live.router.config import Role, RouterConfig
from smetric_model.live.router.decide import Choice, Decider
from smetric_model.live.router.decision_log import DecisionLog
from smetric_model.live.router.disaggregated import serve_disaggregated
from smetric_model.live.router.exact import ExactIndex
from smetric_model.live.router.exchange import Exchange, Failure, where
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.http_errors import HttpError, no_answer
from smetric_model.live.router.http_server import ClientConnection, Ending, Incoming, Server
from smetric_model.live.router.members import Members
from smetric_model.live.router.metrics import CONTENT_TYPE, Metrics
from smetric_model.live.router.question import API_OF_PATH, Question, ask
from smetric_model.live.router.target import clean_path
from smetric_model.live.router.tenants import salted_body
from smetric_model.live.router.tokenise import RenderCheck, Tokeniser
from smetric_model.live.router.usage import TAIL_BYTES, read_usage
from smetric_model.routing.policy import LoadUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smetric_model.live.router.exact import ExactPrompt

__all__ = ["Service"]

_LOGGER = logging.getLogger("smetric_model.router")
_JSON = [(b"content-type", b"application/json")]


class Service:
    """A router.

    Parameters
    ----------
    config : RouterConfig
        Its configuration.

    Raises
    ------
    SpecError
        If the policy or a file named in the configuration is wrong.
    """

    def __init__(self, config: RouterConfig):
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.started_s = time.time()
        self.draining = False
        self.exchanges: set[Exchange] = set()
        self.retry_statuses = frozenset(config.retry.on_status)
        policy = config.make_policy()
        self.decision_log: DecisionLog | None = None
        if config.log.decisions is not None:
            try:
                self.decision_log = DecisionLog(config.log.decisions, policy)
            except OSError as error:
                raise SpecError(
                    f"log.decisions: {config.log.decisions} cannot be written: {error.strerror}"
                ) from None
        self.approximate: ApproximateIndex | None = None
        if config.hits.source != "none":
            self.approximate = ApproximateIndex(config.hits.index_bytes)
        self.exact: ExactIndex | None = None
        self.tokeniser: Tokeniser | None = None
        self.render_check = RenderCheck()
        if config.hits.source == "exact":
            self._set_up_exact()
        self.members = Members(config, self.loop, self.approximate, self.exact)
        self.fleet, self.feeds = self.members.fleet, self.members.feeds
        unit = LoadUnit.UNPREFILLED_TOKENS if config.is_disaggregated else LoadUnit.REQUESTS
        self.decider = Decider(
            policy,
            config.policy.seed,
            unit,
            self.approximate,
            self.exact,
            self.decision_log,
            config.policy.compiled,
        )
        self.server = Server(self._handle, config.limits, config.timeouts)
        self.metrics = Metrics(self)
        self.admin = Admin(self, read_token(config))
        self._refused = tuple(clean_path(path.encode()) for path in config.paths.refuse)
        apis = (path.encode() for path in API_OF_PATH)
        self._plain = frozenset(path for path in apis if not self._is_refused(path))
        header = config.paths.session_header
        self._session_header = header.lower().encode() if header else None
        header = config.tenants.header
        self._tenant_header = header.lower().encode() if header else None
        self._id_prefix = secrets.token_hex(6).encode()
        self._ids = 0
        self._flusher: asyncio.Task[None] | None = None
        self._sweeper = self.loop.create_task(self._sweep())
        for section in config.instances:
            self.members.add(section)

    def _set_up_exact(self) -> None:
        hits = self.config.hits
        if self.config.instances and all(i.kv_events is None for i in self.config.instances):
            raise SpecError(
                "hits.source is 'exact', but no instance has kv_events; give the ZMQ endpoint of "
                "at least one engine's events"
            )
        self.exact = ExactIndex(hits.speculative_s)
        self.tokeniser = Tokeniser(
            hits.tokenizer,
            chat_template=hits.chat_template,
            add_special_tokens=hits.add_special_tokens,
            threads=hits.tokenise_threads,
            cache_bytes=hits.token_cache_bytes,
        )

    # ---------------------------------------------------------------- life

    async def start(self) -> tuple[str, int]:
        """Listen; return the address."""
        listen = self.config.listen
        try:
            address = await self.server.start(listen.host, listen.port, listen.backlog)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SpecError(
                f"listen: cannot listen on {listen.host}:{listen.port}: {why}"
            ) from None
        if self.decision_log is not None:
            self._flusher = self.loop.create_task(self._flush_forever())
        _LOGGER.info(
            "listening",
            extra={
                "fields": {"host": address[0], "port": address[1], "instances": len(self.fleet)}
            },
        )
        return address

    async def drain(self) -> bool:
        """Take nothing new, and wait for what is in flight; whether all of it ended in time."""
        self.draining = True
        self.server.stop_listening()
        _LOGGER.info("draining", extra={"fields": {"in_flight": len(self.exchanges)}})
        try:
            async with asyncio.timeout(self.config.timeouts.drain_s):
                while self.exchanges or self.server.connections:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything now."""
        self.draining = True
        await self.server.close()
        tasks = [exchange.task for exchange in self.exchanges if exchange.task is not None]
        for task in tasks:
            task.cancel()
        watching = [self._sweeper, *self.members.tasks()]
        if self._flusher is not None:
            watching.append(self._flusher)
        for task in watching:
            task.cancel()
        await asyncio.gather(*tasks, *watching, return_exceptions=True)
        self.members.close()
        if self.tokeniser is not None:
            self.tokeniser.close()
        await asyncio.sleep(0)  # sockets close on the next turn of the loop
        if self.decision_log is not None:
            self.decision_log.close()

    async def _sweep(self) -> None:
        """Look at the time of every exchange; one task for all is cheaper than a timer each."""
        waits = self.config.timeouts
        step = min(0.5, waits.first_byte_s / 8, waits.idle_s / 8, waits.total_s / 8)
        while True:
            await asyncio.sleep(step)
            now = self.loop.time()
            for exchange in tuple(self.exchanges):
                exchange.check_time(now)

    async def _flush_forever(self) -> None:
        assert self.decision_log is not None
        while True:
            await asyncio.sleep(1)
            self.decision_log.flush()

    # ---------------------------------------------------------------- requests

    def _handle(self, request: Incoming, client: ClientConnection) -> Ending | None:
        """Answer what is the router's own; forward the rest."""
        try:
            path = clean_path(request.target)
            if path == b"/health":
                self._answer_health(client)
            elif path == b"/health/live":
                client.send(200, _JSON, b'{"status":"ok"}')
            elif path == b"/metrics":
                client.send(200, [(b"content-type", CONTENT_TYPE)], self.metrics.text())
            elif path == b"/router" or path.startswith(b"/router/"):
                self._answer_admin(request, client, path)
            else:
                self._check_path(request, path)
                return self._forward(request, client)
        except HttpError as error:
            client.send(error.status, [*_JSON, *error.headers], error.body())
        except Exception:
            # A defect must not leave the client waiting behind an answer that never comes.
            _LOGGER.error("defect", extra={"fields": {"where": where()}})
            if client.current is request and not client.head_sent:
                failed = HttpError(500, "router_error", "the router failed")
                client.send(failed.status, _JSON, failed.body())
            else:
                client.abort()
        return None

    def _forward(self, request: Incoming, client: ClientConnection) -> Exchange:
        self._ids += 1
        given = request.header(b"x-request-id")
        request_id = given if given else b"%s-%x" % (self._id_prefix, self._ids)
        exchange = Exchange(self, request, client, request_id)
        self.exchanges.add(exchange)
        exchange.task = self.loop.create_task(exchange.run())
        return exchange

    def _check_path(self, request: Incoming, path: bytes) -> None:
        if request.method == b"CONNECT" or not path.startswith(b"/"):
            raise HttpError(400, "bad_target", "the request target is no path")
        if path not in self._plain and self._is_refused(path):
            raise HttpError(
                403, "path_refused", "this path is for the engines' operator: not forwarded"
            )
        if self._tenant_header is not None and not request.header(self._tenant_header):
            raise HttpError(
                401, "no_tenant", f"header {self._tenant_header.decode()} is missing; it is needed"
            )

    def _is_refused(self, path: bytes) -> bool:
        return any(path == one or path.startswith(one + b"/") for one in self._refused)

    async def serve(self, exchange: Exchange) -> None:
        """Decide and try, until there is an answer.

        Raises
        ------
        HttpError
            If no instance has given one.
        """
        question = self._ask(exchange)
        prompt: ExactPrompt | None = None
        if self.exact is not None and self.exact.live and self.render_check.is_believable:
            prompt = await self._tokens(question)
        exchange.prompt = prompt
        if self.config.is_disaggregated:
            await serve_disaggregated(self, exchange, question, prompt)
            return
        pool = self.fleet.pool("serve")
        limit = self.config.retry.attempts
        failure: Failure | None = None
        while exchange.attempts < limit:
            choice = self.choose(exchange, question, pool, prompt)
            if choice is None:
                break
            instance = choice.instance
            others = any(
                item.takes_requests and item is not instance and item not in exchange.tried
                for item in pool
            )
            failure = await exchange.attempt(
                instance,
                unprefilled_tokens=choice.unprefilled_tokens,
                held_tokens=choice.request.prompt_tokens,
                may_retry=others and exchange.attempts + 1 < limit,
            )
            if failure is None:
                return
            self.failed(exchange, instance, failure)
            if failure.final:
                break
        raise no_answer(failure, exchange.attempts)

    async def _tokens(self, question: Question) -> ExactPrompt | None:
        assert self.tokeniser is not None
        assert self.exact is not None
        start = self.loop.time()
        prompt = await self.tokeniser.prompt(
            question, self.exact, self.config.hits.tokenise_budget_s
        )
        self.metrics.tokenised(self.loop.time() - start, prompt is not None)
        return prompt

    def choose(
        self,
        exchange: Exchange,
        question: Question,
        pool: Sequence[Instance],
        prompt: ExactPrompt | None,
    ) -> Choice | None:
        """Choose an instance that this request has not tried; None if there is none."""
        choice = self.decider.choose(
            question, pool, exchange.tried, prompt, exchange.request_id.decode("latin-1")
        )
        if choice is None:
            return None
        exchange.choice = choice
        self.metrics.decided(choice)
        bit = choice.instance.bit
        if self.approximate is not None:
            exchange.mark = self.approximate.last_use(question.chain, bit)
        if self.exact is not None and prompt is not None:
            exchange.speculation = self.exact.speculate(prompt, bit)
        return choice

    def failed(self, exchange: Exchange, instance: Instance, failure: Failure) -> Failure:
        """Note that an attempt gave nothing."""
        self.metrics.failed(instance.name, failure.word)
        exchange.tried.append(instance)
        if exchange.speculation is not None:
            exchange.speculation.drop()
            exchange.speculation = None
        return failure

    def _ask(self, exchange: Exchange) -> Question:
        request = exchange.request
        tenant = b""
        if self._tenant_header is not None:
            tenant = request.header(self._tenant_header) or b""
        question = exchange.question = ask(
            request, session_header=self._session_header, tenant=tenant
        )
        if self._tenant_header is not None and request.method not in (b"GET", b"HEAD", b"OPTIONS"):
            secret = self.config.tenants.secret
            assert secret is not None
            exchange.body = salted_body(question, request.body, request.path, tenant, secret)
        return question

    # ---------------------------------------------------------------- what exchanges tell

    def begun(self, exchange: Exchange, status: int) -> None:
        """Learn that an instance has prefilled a prompt."""
        choice, question = exchange.choice, exchange.question
        if choice is None or question is None or not 200 <= status < 300:
            return
        if exchange.speculation is not None:
            exchange.speculation.first_token()
        if self.approximate is not None:
            instance = choice.instance
            self.approximate.learn(question.chain, instance.bit, instance.kv_capacity_tokens)

    def prefilled(self, exchange: Exchange, answer: bytes) -> None:
        """Learn from the answer of the first of two stages."""
        exchange.prefill_tail = answer[-TAIL_BYTES:]
        self.begun(exchange, 200)

    def answered(self, exchange: Exchange, status: int, tail: bytes) -> None:
        """Learn from a whole answer."""
        choice, question = exchange.choice, exchange.question
        if choice is None or question is None or question.api is None or not 200 <= status < 300:
            return
        two_stages = bool(exchange.prefill_tail)
        usage = read_usage(exchange.prefill_tail or tail)
        if exchange.prompt is not None and usage.prompt_tokens:
            self.render_check.compare(exchange.prompt.tokens, usage.prompt_tokens)
        scale = 1.0
        if choice.source != "exact" and usage.prompt_tokens and choice.request.prompt_tokens:
            scale = usage.prompt_tokens / choice.request.prompt_tokens
        predicted = round(choice.hit_tokens * scale)
        self.metrics.delivered(usage, predicted)
        if self.approximate is None or not question.chain.keys:
            return
        bit = choice.instance.bit
        if (
            usage.cached_tokens is not None
            and exchange.mark
            and _dropped(usage.cached_tokens, predicted)
        ):
            self.approximate.forget_until(bit, exchange.mark)
        if not two_stages:  # the answer's KV cache lies where it was decoded
            self.approximate.answered(question.chain, bit, usage.output_tokens or 0)

    def ended(self, exchange: Exchange) -> None:
        """Count a request that ended, whichever way."""
        self.exchanges.discard(exchange)
        if exchange.speculation is not None:
            exchange.speculation.drop()  # does nothing after the first token
        self.metrics.ended(exchange)
        if self.config.log.requests:
            choice = exchange.choice
            _LOGGER.info(
                "request",
                extra={
                    "fields": {
                        "request_id": exchange.request_id.decode("latin-1"),
                        "ended": exchange.ended_as,
                        "status": exchange.status,
                        "instance": None if choice is None else choice.instance.name,
                        "reason": None if choice is None else choice.reason.name.lower(),
                        "attempts": exchange.attempts,
                        "seconds": round(exchange.seconds, 6),
                        "note": "" if exchange.question is None else exchange.question.note,
                    }
                },
            )

    # ---------------------------------------------------------------- own answers

    def is_ready(self) -> bool:
        """Whether a request could be served."""
        if self.draining:
            return False
        roles: tuple[Role, ...] = (
            ("prefill", "decode") if self.config.is_disaggregated else ("serve",)
        )
        return all(any(item.takes_requests for item in self.fleet.pool(role)) for role in roles)

    def _answer_health(self, client: ClientConnection) -> None:
        ready = self.is_ready()
        state = "ok" if ready else "draining" if self.draining else "no instance takes requests"
        body = {
            "status": state,
            "instances": {
                item.name: "draining" if item.draining else "up" if item.up else "down"
                for item in self.fleet
            },
            "hits": self.hits_state(),
        }
        client.send(200 if ready else 503, _JSON, orjson.dumps(body))

    def hits_state(self) -> dict[str, Any]:
        """Which source of hit lengths is in force, and how it is."""
        state: dict[str, Any] = {"source": self.config.hits.source}
        if self.exact is not None:
            check = self.render_check
            if not check.is_believable:
                state["source"] = "approximate"
                state["why"] = "prompts tokenised here are not as long as the engines say"
            state["feeds"] = {name: feed.state for name, feed in self.feeds.items()}
            state["prompts_compared"] = check.compared
            state["prompts_different"] = check.different
        return state

    def _answer_admin(self, request: Incoming, client: ClientConnection, path: bytes) -> None:
        status, body = self.admin.answer(request, path.decode("ascii", "replace"))
        client.send(status, _JSON, orjson.dumps(body))


def _dropped(cached_tokens: int, predicted_tokens: int) -> bool:
    """Whether a hit is so short that the prefix was evicted, not merely rounded or re-rendered."""
    return predicted_tokens >= 512 and cached_tokens < predicted_tokens / 2
