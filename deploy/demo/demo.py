#!/usr/bin/env python3
"""The demo's script: see deploy/demo.sh, which makes what this needs."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
BLOCKED = "capability_blocked"
MENDED = ("crashed", "start_failed", "given_up")
# Hangar gives up after 35 s and then names a backoff of 18 s; the rest is the daemon's own reading and settling.
PATIENCE_S = 200
BEGAN = time.monotonic()


def tell(who, what):
    print(f"{time.monotonic() - BEGAN:6.1f}s  {who:<19} {what}", flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def clock(stamp):
    """15:21:05 of an RFC 3339 time."""
    return stamp[11:19] + " UTC" if stamp else ""


class Ask:
    """JSON and text over HTTP, from loopback."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"

    def text(self, path, method="GET", timeout=60):
        request = urllib.request.Request(self.base + path, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read().decode()

    def json(self, path):
        return json.loads(self.text(path))

    def up(self, path):
        try:
            self.text(path, timeout=2)
        except OSError:
            return False
        return True


class Stage:
    """Everything that was started, and its end."""

    def __init__(self, args):
        self.args = args
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hangar-medic-demo-"))
        self.processes = []

    def spawn(self, command, log):
        with open(self.dir / log, "ab") as out:
            # A session of its own: Ctrl-C is ours to pass on, in the right order.
            p = subprocess.Popen(command, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.processes.append(p)
        return p

    def start(self, name, command, path, log):
        """Starts a server on a free port (a second time if somebody took it first); gives a way to ask it."""
        for _ in range(3):
            port = free_port()
            process, ask, until = self.spawn(command(port), log), Ask(port), time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                if ask.up(path):
                    return ask
                time.sleep(0.2)
        sys.exit(f"{name} did not come up:\n{self.tail(log)}")

    def tail(self, log):
        return "\n".join((self.dir / log).read_text(errors="replace").splitlines()[-15:])

    def end(self):
        """Newest first: the daemon before the Hangar that it watches. Only what was started here."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(12)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    # --- the toy servers ---------------------------------------------------

    def mode(self, server, mode):
        fresh = self.dir / f"{server}.ctl.new"
        fresh.write_text(mode + "\n")
        fresh.replace(self.dir / f"{server}.ctl")

    def starts(self, server):
        """(seconds since the epoch, pid) of every process of this server that was ever started."""
        path = self.dir / f"{server}.starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def entry(self, server, **settings):
        command = [sys.executable, "-B", "-S", str(HERE / "toy_stdio.py"), "--name", server,
                   "--ctl", str(self.dir / f"{server}.ctl"), "--starts", str(self.dir / f"{server}.starts")]
        return {"mode": "subprocess", "command": command, "health_check_interval_s": 5, "idle_ttl_s": 3600, **settings}

    def hangar(self):
        declared = {"enforcement_mode": "block", "tools": {"expected_tools": ["echo"]}}
        servers = {
            "crashed": self.entry("crashed"),
            "start_failed": self.entry("start_failed"),
            "given_up": self.entry("given_up", max_consecutive_failures=1),
            BLOCKED: self.entry(BLOCKED, capabilities=declared),
        }
        (self.dir / "hangar.yaml").write_text(json.dumps({"mcp_servers": servers}))  # JSON is YAML

        def command(port):
            return [self.args.hangar, "serve", "--config", "hangar.yaml", "--http", "--host", "127.0.0.1", "--port", str(port),
                    "--log-file", "hangar.log"]

        return self.start("MCP Hangar", command, "/health/live", "hangar.console")

    def medic(self, hangar):
        def command(port):
            return [self.args.medic, "run", "--hangar.url", hangar.base, "--hangar.log-file", "hangar.log",
                    "--storage.path", "medic", "--web.listen-address", f"127.0.0.1:{port}", "--log.format", "json"]

        return self.start("hangar-medic", command, "/-/ready", "medic.log")


def user_start(hangar, server):
    """A user's start, which may well fail: that is how a server dies here."""
    try:
        hangar.text(f"/api/mcp_servers/{server}/start", method="POST")
    except urllib.error.HTTPError as e:
        e.close()


def break_all(stage, hangar):
    tell("crashed", "BREAK  its process is killed, and its upstream hangs")
    stage.mode("crashed", "slow_init:2")
    os.kill(int(stage.starts("crashed")[-1][1]), signal.SIGKILL)
    time.sleep(1)
    stage.mode("crashed", "ok")
    tell("crashed", "MEND   its upstream answers again")

    for server, why in (("start_failed", "its upstream is down when it is started"), ("given_up", "its upstream stays down through all of Hangar's retries")):
        tell(server, f"BREAK  {why}")
        stage.mode(server, "exit")
        user_start(hangar, server)
    tell(BLOCKED, "BREAK  it exposes a tool that it did not declare")
    stage.mode(BLOCKED, "extra_tool")
    user_start(hangar, BLOCKED)

    time.sleep(1)
    stage.mode("start_failed", "ok")
    tell("start_failed", "MEND   its upstream is up again")


class Follower:
    """Prints what is new in the daemon's incidents and attempts, one line an event."""

    def __init__(self, medic):
        self.medic, self.told = medic, {}
        self.incidents, self.attempts = [], []

    def look(self):
        self.incidents = self.medic.json("/api/v1/incidents")["incidents"]
        self.attempts = self.medic.json("/api/v1/attempts")["attempts"]
        for incident in self.incidents:
            self.once(incident, "reason", f"DEAD   reason: {incident['reason']}{self.source(incident)}")
        for attempt in self.attempts:
            rung = f"rung {attempt['rank']} {attempt['action']}"
            if attempt["outcome"] is None:
                self.once(attempt, "outcome", f"TRY    {rung}")
            else:
                self.once(attempt, "outcome", f"CAME   {rung}: {attempt['outcome']}; {attempt['reason']}")
        for incident in self.incidents:
            if incident["phase"] == "closed":
                self.once(incident, "how", f"CLOSED {incident['how']}")
            elif incident["hold"]:
                until = f" until {clock(incident['hold_until'])}" if incident["hold_until"] else ""
                self.once(incident, "hold", f"HELD   {incident['hold']}{until}{'; ' + incident['why'] if incident['why'] else ''}")

    @staticmethod
    def source(incident):
        return f" (told by {incident['provenance']['source']})" if incident["provenance"] else ""

    def once(self, thing, key, line):
        known = (thing.get("attempt_id") or thing["incident_id"], key)
        news = (thing[key], thing.get("hold_until") if key == "hold" else None)
        if self.told.get(known) != news:
            self.told[known] = news
            tell(thing["mcp_server"], line)

    def newest(self, server):
        return next((i for i in reversed(sorted(self.incidents, key=lambda i: i["opened_at"])) if i["mcp_server"] == server), None)

    def all_done(self):
        mended = all((self.newest(s) or {}).get("phase") == "closed" for s in MENDED)
        blocked = self.newest(BLOCKED) or {}
        return mended and blocked.get("hold") == "approval_needed"


def follow(stage, hangar, follower):
    until, given_up = time.monotonic() + PATIENCE_S, False
    while time.monotonic() < until:
        follower.look()
        if not given_up and hangar.json("/api/mcp_servers/given_up")["state"] == "dead":
            given_up = True
            stage.mode("given_up", "ok")
            tell("given_up", "MEND   Hangar gave up; now its upstream is up again")
        if given_up and follower.all_done():
            return
        time.sleep(0.5)


def table(title, columns, rows):
    widths = [max(len(str(r[i])) for r in [columns, *rows]) for i in range(len(columns))]
    print(f"\n{title}")
    for row in [columns, *rows]:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())


def story(stage, medic, follower):
    """What `hangar-medic incidents show` tells of the one that was killed."""
    incident = (follower.newest("crashed") or {}).get("incident_id")
    if incident:
        command = [stage.args.medic, "incidents", "show", incident, "--medic.url", medic.base]
        print(f"\n$ hangar-medic incidents show {incident}", flush=True)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def verdict(stage, hangar, medic, follower, blocked_starts):
    table("Incidents", ("mcp_server", "reason", "phase", "how", "hold"),
          [(i["mcp_server"], i["reason"], i["phase"], i["how"] or "", i["hold"] or "") for i in follower.incidents])
    table("Attempts", ("started", "mcp_server", "rank", "action", "outcome", "reason"),
          [(clock(a["started_at"]), a["mcp_server"], a["rank"], a["action"], a["outcome"] or "open", a["reason"]) for a in follower.attempts])
    metric = next(line for line in medic.text("/metrics").splitlines() if line.startswith("fraction_avoided_full_restart "))
    print(f"\n{metric}\n")
    checks = [(f"{s} is ready again", hangar.json(f"/api/mcp_servers/{s}")["state"] == "ready") for s in MENDED]
    starts = len(stage.starts(BLOCKED))
    checks.append((f"{BLOCKED} was never started by the daemon ({starts} process start, the one that blocked it)", starts == blocked_starts))
    for what, holds in checks:
        print(f"{'ok  ' if holds else 'FAIL'}  {what}")
    return 0 if all(holds for _, holds in checks) else 1


def play(stage):
    hangar = stage.hangar()
    tell("MCP Hangar", f"2.34.4 is up at {hangar.base}")
    for server in ("crashed", "start_failed", BLOCKED):
        stage.mode(server, "ok")
    user_start(hangar, "crashed")
    medic = stage.medic(hangar)
    tell("hangar-medic", f"is up at {medic.base}, with its default settings")
    break_all(stage, hangar)
    blocked_starts = len(stage.starts(BLOCKED))
    follower = Follower(medic)
    follow(stage, hangar, follower)
    story(stage, medic, follower)
    code = verdict(stage, hangar, medic, follower, blocked_starts)
    if code:
        print(f"\nThe daemon's last lines:\n{stage.tail('medic.log')}", file=sys.stderr)
    return code


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--medic", required=True, help="the daemon's binary")
    ap.add_argument("--hangar", required=True, help="mcp-hangar's executable")
    stage = Stage(ap.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(play(stage))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        stage.end()


if __name__ == "__main__":
    main()
