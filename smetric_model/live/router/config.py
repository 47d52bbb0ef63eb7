"""The router's configuration file: every key with its default, its range and what it says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from smetric_model._scenario_text import toml_position
from smetric_model.errors import SpecError
from smetric_model.routing.policy import Policy
from smetric_model.routing.registry import make_policy

__all__ = [
    "AdminSection",
    "DisaggregatedSection",
    "HealthSection",
    "HitSection",
    "InstanceSection",
    "LimitSection",
    "ListenSection",
    "LogSection",
    "PathSection",
    "PolicySection",
    "RetrySection",
    "RouterConfig",
    "TenantSection",
    "TimeoutSection",
    "load_config",
    "parse_url",
    "read_config",
]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrInf = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Role = Literal["serve", "prefill", "decode"]
InstanceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$")]

#: What an engine does for its operator, not for a client (vLLM's development and control paths).
CONTROL_PATHS = (
    "/abort_requests",
    "/collective_rpc",
    "/finish_weight_update",
    "/get_world_size",
    "/init_weight_transfer_engine",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/pause",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/scale_elastic_ep",
    "/server_info",
    "/sleep",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/update_weights",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
)


def parse_url(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an engine's URL.

    Raises
    ------
    ValueError
        If it is not ``http://host:port`` or ``https://host:port``.
    """
    parts = urlsplit(url)
    allowed = "http://host:port or https://host:port, without a path, is allowed"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r}: {allowed}")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r}: {allowed}")
    try:
        port = parts.port
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"{url!r}: the host is no name that can be looked up") from None
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"{url!r}: the port is no number from 1 to 65535; {allowed}")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, port


class Spec(BaseModel):
    """Frozen, strict, no unknown keys; a wrong value is a SpecError, one line a problem."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, /, **data: Any):
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            lines = [_problem(item) for item in error.errors(include_url=False)]
            raise SpecError("\n".join(dict.fromkeys(lines))) from None

    # Marks the line above as no more than BaseModel's own __init__, so that sections are
    # validated in one go.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


#: whose values no message repeats
_SECRETS = ("token", "secret")


def _problem(item: Any) -> str:
    """One line: where, the value, what is wrong with it."""
    where = ""
    for part in item["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{where} is not a known key; docs/router.md lists them"
    if item["type"] == "missing":
        return f"{where} is missing"
    if item["type"] == "value_error":
        return f"{where}: {message}" if where else message
    value = repr(item["input"])
    shown = "" if where.endswith(_SECRETS) else f" = {value[:80]}"
    return f"{where}{shown}: {message[:1].lower()}{message[1:]}"


class ListenSection(Spec):
    """``[listen]``: where clients connect."""

    host: str = Field("127.0.0.1", min_length=1, description="Address; loopback unless told.")
    port: Port = Field(8080, description="Port; 0 takes a free one.")
    backlog: Annotated[int, Field(ge=1, lt=2**31)] = Field(
        2048, description="Connections the system may hold for us."
    )


class InstanceSection(Spec):
    """``[[instances]]``: one engine."""

    name: InstanceName = Field(description="What headers, metrics and logs call it.")
    url: str = Field(description="`http://host:port` or `https://host:port`.")
    role: Role = Field(
        "serve", description="`serve`, or the pool of the disaggregated mode it belongs to."
    )
    kv_events: str | None = Field(
        None, description="ZMQ endpoint of its KV events, as `tcp://host:5557`."
    )
    kv_replay: str | None = Field(None, description="ZMQ endpoint of their replay.")
    kv_topic: str = Field("", description="Topic to subscribe to; empty takes all.")
    kv_capacity_tokens: Count | None = Field(
        None, description="Tokens its KV cache holds; by default what its metrics say."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        parse_url(url)
        return url.rstrip("/")

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        kind, separator, rest = endpoint.partition("://")
        host, _, port = rest.rpartition(":")
        if kind == "tcp" and host == "*":
            raise ValueError(f"{endpoint!r}: * is where the engine listens; give its host here")
        if not separator or not (
            (kind in ("ipc", "inproc") and rest)
            or (kind == "tcp" and host and port.isdecimal() and 0 < int(port[:9]) < 65536)
        ):
            raise ValueError(f"{endpoint!r}: tcp://host:port or ipc://path is allowed")
        return endpoint


class PolicySection(Spec):
    """``[policy]``: a policy of ``smetric-model``'s routing and its parameters."""

    name: str = Field("smetric", description="One of the policies of `docs/routing.md`.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Seed of the policies that draw."
    )
    compiled: bool = Field(
        True,
        description="Whether decisions are taken by the compiled twin: the same answers in a tenth "
        "of the time; the first start on a machine compiles for some seconds.",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the policy, `docs/routing.md`."
    )


class HitSection(Spec):
    """``[hits]``: how the router knows what an instance has cached."""

    source: Literal["exact", "approximate", "none"] = Field(
        "approximate",
        description="`exact`: KV events; `approximate`: learnt from responses; `none`.",
    )
    index_bytes: Annotated[int, Field(ge=1_000_000)] = Field(
        256_000_000, description="Memory of the approximate index, all instances together."
    )
    tokenizer: str | None = Field(
        None, description="Folder with `tokenizer.json` and the chat template (for `exact`)."
    )
    chat_template: str | None = Field(
        None, description="Jinja file, if not the one in the tokenizer's folder."
    )
    add_special_tokens: bool = Field(
        True, description="Whether the engine adds special tokens to text prompts (vLLM does)."
    )
    tokenise_threads: Count = Field(1, description="Threads that tokenise.")
    tokenise_budget_s: Seconds = Field(
        0.5, description="A prompt not tokenised by then is looked up approximately."
    )
    token_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        256_000_000, description="Memory of the cache of tokens per message prefix."
    )
    speculative_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        2.0,
        description="How long after its first token a prompt counts as cached without an event.",
    )


class TimeoutSection(Spec):
    """``[timeouts]``."""

    connect_s: Seconds = Field(2.0, description="To connect to an engine.")
    first_byte_s: SecondsOrInf = Field(
        600.0, description="From sending a request to the first byte of the answer's body."
    )
    idle_s: SecondsOrInf = Field(
        120.0, description="Between two pieces of an answer, in either direction."
    )
    total_s: SecondsOrInf = Field(3600.0, description="Whole request, retries included.")
    request_s: Seconds = Field(60.0, description="For a client to send its request.")
    keep_alive_s: Seconds = Field(75.0, description="An idle connection of a client.")
    engine_keep_alive_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        4.0, description="An idle connection to an engine; below the engine's own (vLLM: 5)."
    )
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0, description="For requests in flight to end when the router stops."
    )


class RetrySection(Spec):
    """``[retry]``: before the first byte only, each time on another instance."""

    attempts: Count = Field(3, description="Instances tried at most.")
    on_status: list[Annotated[int, Field(ge=400, le=599)]] = Field(
        default_factory=lambda: [429, 500, 502, 503, 504],
        description="Answers of an engine that are tried elsewhere.",
    )


class LimitSection(Spec):
    """``[limits]``."""

    header_bytes: Annotated[int, Field(ge=1024)] = Field(
        65_536, description="Request line and headers of a client, or of an engine's answer."
    )
    body_bytes: Count = Field(134_217_728, description="Body of a request.")
    connections: Count = Field(20_000, description="Connections of clients.")


class HealthSection(Spec):
    """``[health]``: probes; they never touch the load."""

    path: str = Field("/health", pattern=r"^/[!-~]*$", description="What is asked.")
    interval_s: Seconds = Field(2.0, description="Between two probes of an instance.")
    timeout_s: Seconds = Field(5.0, description="Of one probe.")
    fails: Count = Field(3, description="Probes failed in a row that take an instance out.")
    successes: Count = Field(1, description="Probes passed in a row that take it back.")
    scrape_interval_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        5.0, description="Between two readings of an engine's metrics; 0 reads none."
    )


class AdminSection(Spec):
    """``[admin]``: instances at run time; without a token there is no such endpoint."""

    token: str | None = Field(None, min_length=16, description="Bearer token.")
    token_file: str | None = Field(None, description="File that holds it.")

    @model_validator(mode="after")
    def _one(self) -> AdminSection:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; one of them is allowed")
        return self


class TenantSection(Spec):
    """``[tenants]``: prefix caches kept apart by ``cache_salt``."""

    header: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header that names the tenant, as `authorization`; none: not kept apart.",
    )
    secret: str | None = Field(
        None, min_length=16, description="Key of the salt, so that no client can guess another's."
    )

    @model_validator(mode="after")
    def _both(self) -> TenantSection:
        if (self.header is None) != (self.secret is None):
            raise ValueError("header and secret go together; one of them is missing")
        return self


class PathSection(Spec):
    """``[paths]``."""

    refuse: list[Annotated[str, Field(pattern=r"^/")]] = Field(
        default_factory=lambda: list(CONTROL_PATHS),
        description="Paths, with all below them, that are answered 403 and not forwarded.",
    )
    session_header: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header that names the session, for the hash policies; by default the hash "
        "of the session's first messages does.",
    )


class LogSection(Spec):
    """``[log]``: nothing from a prompt is ever written."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Of events.")
    requests: bool = Field(False, description="One line a request.")
    decisions: str | None = Field(None, description="File for decisions as JSON lines.")
    decision_headers: bool = Field(True, description="`x-smetric-…` headers in answers.")


class DisaggregatedSection(Spec):
    """``[disaggregated]``: prefill and decode in two pools."""

    connector: Literal["nixl", "storage"] = Field(
        "nixl",
        description="`nixl`: the prefill engine's `kv_transfer_params` go to the decode engine; "
        "`storage`: both use one KV tier, nothing is handed over.",
    )
    retries: Annotated[int, Field(ge=0, le=5)] = Field(
        1, description="Times both stages are run again if one fails before the first byte."
    )


class RouterConfig(Spec):
    """The router's configuration; ``docs/router.md`` lists every key."""

    instances: list[InstanceSection] = Field(default_factory=list, description="The engines.")
    listen: ListenSection = ListenSection()
    policy: PolicySection = PolicySection()
    hits: HitSection = HitSection()
    timeouts: TimeoutSection = TimeoutSection()
    retry: RetrySection = RetrySection()
    limits: LimitSection = LimitSection()
    health: HealthSection = HealthSection()
    admin: AdminSection = AdminSection()
    tenants: TenantSection = TenantSection()
    paths: PathSection = PathSection()
    log: LogSection = LogSection()
    disaggregated: DisaggregatedSection = DisaggregatedSection()

    @model_validator(mode="after")
    def _check(self) -> RouterConfig:
        for name, values in (
            ("name", [item.name for item in self.instances]),
            ("url", [item.url for item in self.instances]),
        ):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"instances: {name} {twice[0]!r} stands twice")
        roles = {item.role for item in self.instances}
        if "serve" in roles and len(roles) > 1:
            raise ValueError(
                "instances: roles serve and prefill or decode are mixed; either all serve, or "
                "each is prefill or decode"
            )
        if len(roles) == 1 and roles != {"serve"}:
            raise ValueError(
                f"instances: all have role {roles.pop()!r}; prefill and decode are both needed"
            )
        return self

    @property
    def is_disaggregated(self) -> bool:
        """Whether there are two pools."""
        return any(item.role != "serve" for item in self.instances)

    def make_policy(self) -> Policy:
        """Build the policy.

        Raises
        ------
        SpecError
            For an unknown policy or parameter, or a value outside its range.
        """
        return make_policy(self.policy.name, self.policy.parameters)


def load_config(path: str | Path) -> RouterConfig:
    """Read a configuration file.

    Parameters
    ----------
    path : str or Path
        A TOML file; relative paths in it count from its folder.

    Raises
    ------
    SpecError
        If the file is missing or no TOML (with the line), or its content is wrong.
    """
    try:
        config = RouterConfig(**read_config(path))
        config.make_policy()
    except SpecError as error:
        lines = str(error).splitlines()
        prefix = f"{path}: "
        raise SpecError(
            "\n".join(line if line.startswith(str(path)) else prefix + line for line in lines)
        ) from None
    return config


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a configuration file into the arguments of :class:`RouterConfig`.

    Raises
    ------
    SpecError
        If the file is missing or no TOML (with the line).
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}{toml_position(error)}") from None
    return _resolved(content, path.parent)


def _resolved(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve paths, and let ``[policy]`` hold the policy's parameters beside its name."""
    content = dict(content)
    for section, keys in (
        ("hits", ("tokenizer", "chat_template")),
        ("log", ("decisions",)),
        ("admin", ("token_file",)),
    ):
        table = content.get(section)
        if isinstance(table, dict):
            content[section] = {
                key: str(folder / value) if key in keys and isinstance(value, str) else value
                for key, value in table.items()
            }
    policy = content.get("policy")
    if isinstance(policy, dict) and "parameters" not in policy:
        own = {key: policy[key] for key in ("name", "seed", "compiled") if key in policy}
        rest = {key: value for key, value in policy.items() if key not in own}
        content["policy"] = {**own, "parameters": rest}
    return content
