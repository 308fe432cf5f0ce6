"""Talks to an MCP server over stdio with the real client: lists its tools, calls some, prints what it was told as JSON.

Usage: mcp_client.py CALLS COMMAND [ARG...]; CALLS is a JSON array of [tool, arguments].
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def plain(value):
    return value.model_dump(mode="json", by_alias=True)


async def main():
    calls = json.loads(sys.argv[1])
    server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        hello = plain(await session.initialize())
        tools = plain(await session.list_tools())["tools"]
        answers = []
        for name, arguments in calls:
            result = plain(await session.call_tool(name, arguments))
            error = bool(result.get("isError"))
            text = result["content"][0]["text"] if result["content"] else ""
            structured = result.get("structuredContent")
            if not error and json.loads(text) != structured:
                raise SystemExit(f"{name}: text and structured content differ")
            answers.append({"error": error, "value": text if error else structured})
    print(json.dumps({"instructions": hello.get("instructions"), "tools": tools, "answers": answers}))


asyncio.run(main())
