"""Every setting of the node, read once: lockstep.toml, then LOCKSTEP_* variables over it.

This is the one place that reads them (but the keeper looks up LOCKSTEP_HOME itself, to stay small).
The table in docs/configuration.md is made from the descriptions below.
"""

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from workers.cgroup import core_limit
from workers.fleet.names import NODE
from workers.master.address import BadUrl, check_prefix, passwords
from workers.master.address import parse as parse_url
from workers.sla import BadClass, SlaTable

BAD_CONFIG: Final = 78  # EX_CONFIG
REDIS_URL: Final = (
    "must be like redis://user:password@host:6379/0, unix://, redis+cluster://host:6379,host:6379 "
    "or redis+sentinel://host:26379,host:26379/name, rediss for TLS; signs in a password as %XX"
)


class Settings(BaseSettings):
    """Frozen after reading."""

    model_config = SettingsConfigDict(
        env_prefix="LOCKSTEP_",
        toml_file="lockstep.toml",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
    )

    home: Path = Field(default=Path("var"), description="folder of all state")
    node: str = Field(
        default="",
        pattern=rf"{NODE}|^$",
        description="name of this node in a fleet on one Redis, such as a; unset: it is alone",
    )
    redis_url: str | None = Field(
        default=None,
        repr=False,
        description="Redis or Valkey to use, also a Cluster or by Sentinels (docs/redis.md); "
        "unset: the embedded Valkey",
    )
    redis_ca: Path | None = Field(
        default=None,
        description="certificates that a rediss:// server is trusted by; unset: the system's",
    )
    redis_replicas: int = Field(
        default=0,
        ge=0,
        le=5,
        description="replicas that must have a request before it is accepted (docs/redis.md)",
    )
    store_port: int = Field(default=6390, ge=1, le=65535, description="port of the embedded Valkey")
    store_password: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[A-Za-z0-9_.~+/=-]{16,128}$",
        description="password of the embedded Valkey; unset: all of this machine may ask it",
    )
    store_fsync: Literal["everysec", "always"] = Field(
        default="everysec", description="when the embedded Valkey syncs its log: everysec or always"
    )
    key_prefix: str = Field(
        default="lockstep", pattern=r"^[A-Za-z0-9_{}-]{1,32}$", description="prefix of every key"
    )
    host: str = Field(default="127.0.0.1", description="address the HTTP door listens on")
    open: bool = Field(default=False, description="nobody needs an API key, whatever the address")
    api_key: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{1,512}$",
        description="what our own commands show a door that asks for a key (bench serve)",
    )
    port: int = Field(default=8000, ge=1, le=65535, description="port of the HTTP door")
    model: str = Field(default="smollm2-135m", description="name of the served model")
    threads: int = Field(default=0, ge=0, description="threads of the CPU pool; 0: one per core")
    huge_pages: bool = Field(
        default=False,
        description="read the weights into huge pages at start: faster, for their size in RAM",
    )
    calibrate: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: a pool measures its steps at its first start (2 s); off: it does not",
    )
    gpu: Literal["auto", "off", "emulate", "cpu"] = Field(
        default="auto",
        description="the GPU pool's processor: auto, off, emulate, or cpu (a second CPU engine)",
    )
    kv_mib: int = Field(
        default=0,
        ge=0,
        description="memory of a pool's KV and state in MiB; 0: an eighth of the RAM, a GPU's rest",
    )
    kv_disk_mib: int = Field(
        default=0,
        ge=0,
        description="disk for sessions in MiB; 0: half of it",
    )
    kv_keep_free_mib: int = Field(
        default=0,
        ge=0,
        description="MiB of that disk that sessions leave to others; 0: max(5 %, 2 GiB)",
    )
    kv_tenant_mib: int = Field(
        default=0, ge=0, description="disk for one tenant's sessions in MiB; 0: no limit of its own"
    )
    kv_store_url: str = Field(
        default="",
        pattern=r"^((s3|gs|az|file|memory)://[^\s@]*)?$",
        description="object store that sessions outlive the disk in, such as s3://bucket/prefix or "
        "file:///mnt/shared (extra `objects`; docs/sessions.md)",
    )
    kv_store_idle_s: float = Field(
        default=30.0, ge=1, description="seconds of rest after which a session is sent there"
    )
    kv_store_mib_per_s: float = Field(
        default=0.0, ge=0, description="MiB in a second that are sent there at most; 0: any number"
    )
    kv_store_tenant_mib: int = Field(
        default=0, ge=0, description="what one tenant may have there in MiB, roughly; 0: any number"
    )
    files_tenant_mib: int = Field(
        default=0,
        ge=0,
        description="disk for one tenant's files of batches in MiB; 0: no limit of its own",
    )
    session_ttl_s: int = Field(
        default=30 * 86400,
        ge=60,
        description="seconds after which a session nobody used is forgotten (default: 30 days)",
    )
    max_batch: int = Field(
        default=16, ge=1, le=256, description="sequences that run at once in a pool"
    )
    max_step_tokens: int = Field(default=512, ge=16, description="tokens of one step at most")
    step_budget_ms: int = Field(
        default=200,
        ge=1,
        description="milliseconds that a step may take: prefill chunks are sized by it",
    )
    lease_s: float = Field(
        default=15.0, gt=0, description="seconds after which a silent worker's jobs are taken over"
    )
    max_attempts: int = Field(
        default=4, ge=1, description="deliveries before a request counts as poison"
    )
    result_ttl_s: int = Field(
        default=4 * 86400, ge=60, description="seconds that results are kept (default: 4 days)"
    )
    max_queue: int = Field(
        default=10_000, ge=1, description="waiting requests per class before the door refuses"
    )
    tenant_requests_per_min: int = Field(
        default=0, ge=0, description="requests that one tenant may send in a minute; 0: any number"
    )
    tenant_tokens_per_min: int = Field(
        default=0, ge=0, description="tokens, prompt and output, of one tenant in a minute; 0: any"
    )
    sla: Annotated[dict[str, Any], NoDecode] = Field(
        default={},
        description='classes and what they promise: see "Classes"; in a variable as JSON',
    )
    webhook_secret: str | None = Field(
        default=None, repr=False, description="whsec_...; unset: made at first start"
    )
    webhook_allow: str = Field(
        default="",
        description="CIDRs webhooks may reach although private or by http, comma-separated",
    )
    webhook_retries: str = Field(
        default="5,300,1800,7200,18000,36000,50400,72000,86400",
        description="seconds before each further webhook attempt, comma-separated",
    )
    traces: str = Field(
        default="",
        pattern=r"^(https?://[^\s]+)?$",
        description="where traces go by OTLP/HTTP, such as http://127.0.0.1:4318 (extra `traces`)",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least that is logged: debug, info, warning or error"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="lines of the log: text for people, or a JSON object each"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("sla", mode="before")
    @classmethod
    def check_sla(cls, given: Any) -> dict[str, Any]:
        """A table of lockstep.toml, or the same as JSON. Raises PydanticCustomError, in words."""
        try:
            tables = parse_json(given) if isinstance(given, str) else given
            if not isinstance(tables, dict):
                raise BadClass(f"must be a table of classes, [sla.NAME], got {tables!r}")
            SlaTable.of(tables)
        except ValueError as error:
            raise PydanticCustomError("sla", "{reason}", {"reason": str(error)}) from None
        return tables

    @field_validator("redis_url")
    @classmethod
    def check_redis_url(cls, given: str | None) -> str | None:
        """Raises PydanticCustomError, which does not tell the password."""
        try:
            parse_url(given or "unix://")
        except BadUrl as error:
            why = {"reason": str(error), "form": REDIS_URL}
            raise PydanticCustomError("redis_url", "{form} ({reason})", why) from None
        return given

    @field_validator("key_prefix")
    @classmethod
    def check_key_prefix(cls, given: str, told: ValidationInfo) -> str:
        """Raises PydanticCustomError: a Cluster's keys must lie in one slot."""
        try:
            check_prefix(parse_url(told.data.get("redis_url") or "unix://"), given)
        except BadUrl as error:
            raise PydanticCustomError("key_prefix", "{reason}", {"reason": str(error)}) from None
        return given

    @property
    def classes(self) -> SlaTable:
        """The SLA classes of the node."""
        return SlaTable.of(self.sla)

    @property
    def url(self) -> str:
        """The store's, as clients are made of it: it may hold a password (shown_url)."""
        if not self.redis_url:
            password = f":{quote(self.store_password, safe='')}@" if self.store_password else ""
            return f"redis://{password}127.0.0.1:{self.store_port}/0"
        if self.redis_ca is None or not self.redis_url.startswith("rediss"):
            return self.redis_url
        mark = "&" if urlsplit(self.redis_url).query else "?"
        return f"{self.redis_url}{mark}{urlencode({'ssl_ca_certs': str(self.redis_ca)})}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What may stand in no log, of what was set."""
        words = (self.webhook_secret or "").split()
        told = (self.store_password, self.api_key, *passwords(self.redis_url or ""), *words)
        return tuple(word for word in told if word)

    @property
    def num_threads(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.threads or min(cores, core_limit() or cores)


def shown_url(url: str) -> str:
    """A store's URL as people may see it: without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def parse_json(given: str) -> Any:
    """The value of a variable that holds a table. Raises ValueError, in words."""
    try:
        return json.loads(given or "{}")
    except ValueError as error:
        raise ValueError(f"must be JSON in a variable: {error}") from None


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process."""
    return Settings()


def settings_or_exit() -> Settings:
    """The settings of one of the node's programs. What is wrong with them is said in a sentence
    each, and ends the program: its keeper takes its time before it tries again."""
    try:
        return settings()
    except (ValueError, OSError) as error:
        for sentence in complaints(error):
            print(sentence, file=sys.stderr)
        raise SystemExit(BAD_CONFIG) from None


def complaints(error: ValueError | OSError) -> list[str]:
    """What settings() raised, as sentences."""
    if isinstance(error, ValidationError):
        return [complaint(wrong) for wrong in error.errors()]
    return [f"lockstep.toml cannot be read: {error}."]


def complaint(wrong: Any) -> str:
    """One of pydantic's findings. Only lockstep.toml can hold unknown names."""
    name = "_".join(map(str, wrong["loc"]))
    if wrong["type"] == "extra_forbidden":
        return f"There is no setting {name!r}: docs/configuration.md has them all."
    is_secret = not Settings.model_fields[name].repr if name in Settings.model_fields else False
    value = "" if is_secret else f" to {wrong['input']!r}"
    return f"LOCKSTEP_{name.upper()} is set{value}: {wrong['msg']}."
