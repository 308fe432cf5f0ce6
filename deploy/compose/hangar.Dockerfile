# A Hangar to try things on, with one small MCP server in it. Uid 65532 is the daemon's too: both read the log.
FROM docker.io/library/python:3.12-slim-bookworm
RUN pip install --no-cache-dir mcp-hangar==2.34.4
COPY demo/toy_stdio.py /opt/demo/toy_stdio.py
RUN mkdir -p /var/log/hangar /app/data && chown 65532:65532 /var/log/hangar /app/data
USER 65532:65532
WORKDIR /app
ENTRYPOINT ["mcp-hangar"]
