#!/usr/bin/env python3
"""journalctl -o json --follow over a file of lines, as systemd documents it. journalctl.json beside it says how:
log: the file; quits_after: entries after which it fails; forgotten: entries that are vacuumed away."""
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "journalctl.json")) as f:
    HOW = json.load(f)
with open(os.path.join(HERE, "journalctl.calls"), "a") as f:
    f.write(json.dumps({"pid": os.getpid(), "args": sys.argv[1:]}) + "\n")


def cursor(n):
    return f"s=7b6e;i={n:x};b=5b7e;m={n:x};t={n:x};x=0"


first = 0
for arg in sys.argv[1:]:
    if arg.startswith("--cursor="):
        fields = dict(field.split("=") for field in arg[len("--cursor="):].split(";") if "=" in field)
        if "i" not in fields:
            sys.exit("Failed to seek to cursor: Invalid argument")
        first = int(fields["i"], 16)
first = max(first, HOW.get("forgotten", 0))
n, parent, left = 0, os.getppid(), HOW.get("quits_after")
with open(HOW["log"], "rb") as log:
    rest = b""
    while os.getppid() == parent:
        rest += log.read()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if n >= first:
                text = line.decode(errors="replace")
                message = text if text.isprintable() and text.encode() == line else list(line)
                entry = {"__CURSOR": cursor(n), "__REALTIME_TIMESTAMP": str(1796052000000000 + n), "_PID": "4242",
                         "_SYSTEMD_UNIT": "mcp-hangar.service", "MESSAGE": message}
                sys.stdout.write(json.dumps(entry) + "\n")
                sys.stdout.flush()
                if left is not None:
                    left -= 1
                    if left == 0:
                        sys.exit("Failed to iterate through journal: Bad message")
            n += 1
        time.sleep(0.02)
