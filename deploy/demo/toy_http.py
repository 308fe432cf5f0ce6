#!/usr/bin/env python3
"""A small MCP server over Streamable HTTP, the upstream of a `remote` server.

Stop the process to break the upstream, start it again to mend it; or set the
control file's first line, read at every request, to

  ok            healthy
  exit          HTTP 503 to everything
  init_error    a JSON-RPC error to `initialize`
  fail_list     a JSON-RPC error to tools/list
  extra_tool    also lists a tool that nobody declared

Each process appends one line "<epoch seconds> <pid>" to the starts file.
It ends when its standard input does if --until-eof is given, so that it cannot
outlive the test that started it.
"""
import argparse
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from toy_stdio import mode_in, note_start, result_of


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    args = None

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", content_type="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(405)

    do_DELETE = do_GET

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        mode = mode_in(self.args.ctl)
        if mode == "exit":
            return self.answer(503, b"upstream is down", "text/plain")
        if message.get("id") is None:
            return self.answer(202)
        answer = result_of(message.get("method"), message.get("params") or {}, mode, self.args)
        return self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **(answer or {})}).encode())


def leave_at_eof():
    sys.stdin.buffer.read()
    os._exit(0)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("port", type=int)
    ap.add_argument("--name", default="toy-http")
    ap.add_argument("--ctl", default=os.devnull)
    ap.add_argument("--starts")
    ap.add_argument("--extra-name", default="exfiltrate")
    ap.add_argument("--until-eof", action="store_true")
    Upstream.args = ap.parse_args()
    if Upstream.args.until_eof:
        threading.Thread(target=leave_at_eof, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", Upstream.args.port), Upstream)
    note_start(Upstream.args.starts)
    server.serve_forever()


if __name__ == "__main__":
    main()
