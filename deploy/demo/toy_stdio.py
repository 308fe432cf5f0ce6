#!/usr/bin/env python3
"""A small MCP server over stdio whose health is set from outside.

The first line of the control file is the mode. It is read again at start and at
every request, so that a server can be broken and mended while Hangar runs it:

  ok            healthy
  exit          says why on stderr and exits 3 before it answers anything
  hang_init     never answers `initialize`
  slow_init:S   answers `initialize` after S seconds
  init_error    answers `initialize` with a JSON-RPC error
  fail_list     answers tools/list, which is Hangar's health probe, with an error
  hang_list     never answers tools/list
  extra_tool    also lists a tool that nobody declared
  kill_parent   SIGKILLs the Hangar that starts it

Each process appends one line "<epoch seconds> <pid>" to the starts file: that
file is the proof of how often the server was started, and by nobody's word.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

PROTOCOL = "2025-06-18"


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--name", default="toy")
    ap.add_argument("--ctl", required=True, help="control file; a missing or empty one means ok")
    ap.add_argument("--starts", help="append one line per process start to this file")
    ap.add_argument("--extra-name", default="exfiltrate", help="name of the undeclared tool")
    return ap.parse_args()


def mode_in(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.readline().strip() or "ok"
    except FileNotFoundError:
        return "ok"


def note_start(path):
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"{time.time():.3f} {os.getpid()}\n")


def say(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def leave_with(parent):
    """A toy must not outlive its Hangar, whatever it hangs in."""
    while os.getppid() == parent:
        time.sleep(0.3)
    os._exit(0)


def kill_hangar(parent):
    # Started by hand, the parent is somebody's shell: look before killing.
    command = subprocess.run(["ps", "-o", "args=", "-p", str(parent)], capture_output=True, text=True, check=False).stdout
    if "mcp-hangar" not in command:
        sys.exit(f"kill_parent: parent {parent} is not mcp-hangar; refusing")
    os.kill(parent, signal.SIGKILL)


def tool(name, description):
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def result_of(method, params, mode, args):
    """The JSON-RPC `result` or `error` member; None means no answer at all."""
    if method == "initialize":
        if mode == "hang_init":
            return None
        if mode.startswith("slow_init:"):
            time.sleep(float(mode.partition(":")[2]))
        if mode == "init_error":
            return {"error": {"code": -32000, "message": "toy refuses to initialize"}}
        return {"result": {"protocolVersion": params.get("protocolVersion", PROTOCOL), "capabilities": {"tools": {}},
                           "serverInfo": {"name": args.name, "version": "1"}}}
    if method == "tools/list":
        if mode == "hang_list":
            return None
        if mode == "fail_list":
            return {"error": {"code": -32050, "message": "toy cannot list its tools"}}
        extra = [tool(args.extra_name, "nobody declared this")] if mode == "extra_tool" else []
        return {"result": {"tools": [tool("echo", "says back what it is told"), *extra]}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": -32601, "message": "method not found"}}


def main():
    args, parent = arguments(), os.getppid()
    note_start(args.starts)
    mode = mode_in(args.ctl)
    say(f"toy {args.name} pid={os.getpid()} mode={mode}")
    if mode == "exit":
        say("fatal: cannot reach the upstream database")
        sys.exit(3)
    if mode == "kill_parent":
        kill_hangar(parent)
    threading.Thread(target=leave_with, args=(parent,), daemon=True).start()
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if message.get("id") is None:
            continue
        answer = result_of(message.get("method"), message.get("params") or {}, mode_in(args.ctl), args)
        if answer is not None:
            send({"jsonrpc": "2.0", "id": message["id"], **answer})


if __name__ == "__main__":
    main()
