"""A Hangar of any size that answers as 2.34.4 does, for measurements: what is asked of it is counted and timed."""
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DEAD_LINE = (
    '{"event": "mcp_server_dead: %s", "level": "warning", "logger": "mcp_hangar.domain.model.mcp_server", '
    '"timestamp": "%s", "service": "mcp-hangar"}\n'
)
# Some 3 kB a server in 60 series, of which the daemon reads five.
FILLER = "".join(
    f'mcp_hangar_tool_call_duration_seconds_bucket{{mcp_server="%(id)s",tool="tool_{n}",le="0.25"}} 17.0\n' for n in range(31)
)


def block(id, state, healthy, filler=True):
    own = (
        f'mcp_hangar_mcp_server_state{{mcp_server="{id}"}} {state}.0\n'
        f'mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server="{id}"}} {healthy:.6f}\n'
        f'mcp_hangar_mcp_server_starts_total{{mcp_server="{id}",mode="subprocess",result="success"}} 2.0\n'
        f'mcp_hangar_mcp_server_cold_start_in_progress{{mcp_server="{id}"}} 0.0\n'
    )
    return (own + (FILLER % {"id": id} if filler else "")).encode()


class Stub:
    """`kill` makes a server dead; a start makes it ready."""

    def __init__(self, servers, filler=True):
        self.lock = threading.Lock()
        self.filler = filler
        self.ids = [f"server-{n:05d}" for n in range(servers)]
        self.dead = set()
        self.healthy = {id: time.time() for id in self.ids}
        self.blocks = {id: block(id, 2, time.time(), filler) for id in self.ids}
        self.asked = []  # (when, line)
        self.started = {}
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.take()

            def do_POST(self):
                length = int(self.headers.get("content-length") or 0)
                self.rfile.read(length)
                self.take()

            def take(self):
                now = time.monotonic()
                kind, body = stub.answer(f"{self.command} {self.path}", now)
                # One write: headers and body apart would wait for each other.
                head = f"HTTP/1.1 {200 if body is not None else 404} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body or b'')}\r\n\r\n"
                self.wfile.write(head.encode() + (body or b""))

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.base = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def kill(self, id):
        with self.lock:
            self.dead.add(id)
            self.blocks[id] = block(id, 4, self.healthy[id], self.filler)

    def revive(self, id):
        with self.lock:
            self.dead.discard(id)
            self.healthy[id] = time.time()
            self.blocks[id] = block(id, 2, self.healthy[id], self.filler)

    def detail(self, id):
        dead = id in self.dead
        why = {"reason": "crashed", "since": None, "retry_allowed_at": None, "revived_by": "call_or_start"}
        return {
            "mcp_server_id": id, "state": "dead" if dead else "ready", "mode": "subprocess", "alive": not dead, "tools": [],
            "dead": why if dead else None, "health": {"consecutive_failures": 0, "can_retry": True, "last_failure_ago": None},
        }

    def answer(self, line, now):
        told = lambda value: ("application/json", json.dumps(value).encode())
        with self.lock:
            self.asked.append((now, line))
            if line == "GET /metrics":
                head = b'mcp_hangar_process_start_time_seconds 1796040000.0\nmcp_hangar_build_info{version="2.34.4"} 1.0\n'
                return "text/plain; version=0.0.4", head + b"".join(self.blocks.values())
            if line == "GET /api/mcp_servers/":
                return told({"mcp_servers": [self.detail(id) for id in self.ids]})
            if line == "GET /api/groups/":
                return told({"groups": []})
        named = re.match(r"(GET|POST) /api/mcp_servers/([\w-]+)(/\w+)?", line)
        if not named:
            return told({"status": "healthy", "authenticated": False})
        verb, id, tail = named.groups()
        if tail == "/start":
            self.revive(id)
            self.started.setdefault(id, []).append(now)
            return told({"mcp_server": id, "state": "ready", "tools": []})
        return told({"/tools": {"tools": []}, "/logs": {"logs": []}}.get(tail) or self.detail(id))
