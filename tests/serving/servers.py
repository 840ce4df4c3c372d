"""Redis and PostgreSQL for tests: started on loopback with data in a temporary folder, stopped, slowed and killed."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PASSWORD = "p@ss/w#rd:100%?"
QUOTED = "p%40ss%2Fw%23rd%3A100%25%3F"


def until(happened, seconds=300):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def free_port():
    """A port at which nobody listens, below those that the system gives to connections of others meanwhile."""
    while True:
        port = 10_000 + secrets.randbelow(6_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Server:
    """A process that listens at a port; `url(name)` leads to a table in it."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self.user(),
            group=self.user(),
        )
        until(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, "the server ended"
        return self

    def user(self):
        return None

    def children(self):
        """The processes of the server, itself first."""
        pid = self.process.pid
        own = Path(f"/proc/{pid}/task/{pid}/children")
        return [pid, *map(int, own.read_text().split())] if own.exists() else [pid]

    def signal(self, number):
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/status")
        while status.exists() and "\nState:\tT" not in status.read_text():
            time.sleep(0.001)  # it may be in the midst of starting a child, which would go on
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.kill()


class RedisServer(Server):
    kind = "redis"

    def command(self):
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "requirepass": PASSWORD,
            "save": "",
        }
        return [
            "redis-server",
            *(str(word) for key, value in options.items() for word in (f"--{key}", value)),
        ]

    def answers(self):
        import redis

        try:
            return self.client().ping()
        except redis.RedisError:
            return False

    def client(self):
        import redis

        return redis.Redis.from_url(self.url("").partition("#")[0], decode_responses=True)

    def url(self, name):
        return f"redis://:{QUOTED}@127.0.0.1:{self.port}/0#{name}"


class PostgresServer(Server):
    kind = "postgresql"

    def __init__(self, folder, programs):
        super().__init__(folder)
        self.programs, self.data = programs, folder / "data"
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        make = [
            "-A",
            "scram-sha-256",
            "-U",
            "tester",
            f"--pwfile={folder}/password",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        done = subprocess.run(
            [programs / "initdb", "-D", self.data, *make], capture_output=True, text=True, user=self.user(),
            group=self.user(), cwd=folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def user(self):
        return "postgres" if os.getuid() == 0 else None

    def command(self):
        pid = self.data / "postmaster.pid"
        pid.unlink(missing_ok=True)  # of a server that was killed
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        options["unix_socket_directories"] = ""
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.data), *words]

    def answers(self):
        import psycopg

        try:
            self.client().close()
        except psycopg.OperationalError:
            return False
        return True

    def client(self):
        import psycopg

        return psycopg.connect(self.url("").partition("#")[0], autocommit=True, connect_timeout=120)

    def url(self, name):
        return f"postgresql://tester:{QUOTED}@127.0.0.1:{self.port}/postgres#{name}"


def redis_server():
    """Generator of a running Redis, for a fixture."""
    pytest.importorskip("redis", reason="redis-py is absent: pip install 'fieldwise[redis]'")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is absent: install Redis")
    with tempfile.TemporaryDirectory(prefix="fieldwise-redis-") as folder:
        yield from _running(RedisServer(Path(folder)))


def postgres_server():
    """Generator of a running PostgreSQL, for a fixture."""
    pytest.importorskip(
        "psycopg_pool", reason="psycopg is absent: pip install 'fieldwise[postgresql]'"
    )
    result = shutil.which("initdb")
    places = [Path(result).parent] if result else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places or not (places[-1] / "initdb").exists():
        pytest.skip("PostgreSQL's programs (initdb, postgres) are absent: install PostgreSQL")
    if os.getuid() == 0:
        import pwd

        if "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
            pytest.skip(
                "PostgreSQL does not run as root, and there is no user postgres: create one"
            )
    with tempfile.TemporaryDirectory(prefix="fieldwise-postgres-") as folder:
        yield from _running(PostgresServer(Path(folder), places[-1]))


def _running(server):
    try:
        yield server.start()
    finally:
        server.stop()
