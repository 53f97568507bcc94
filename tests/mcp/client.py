"""Plays MCP's Python client for a test: client.py URL TOKEN MODE, where MODE is `auto` or `legacy`. In place of a URL
{"command", "args", "env"} is a server that is started and spoken to over its standard input and output.

Reads one JSON object a line and answers in lines of JSON. {"tools": true} lists the tools. {"id", "call", "arguments",
"timeout", "progress"} calls one, and is answered with that id: any number of times with `progress`, and once with `result`,
`error` or `gone`. {"cancel": id} cancels a call.
"""

import contextlib
import json
import sys
from datetime import timedelta

import anyio
import anyio.to_thread
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

try:
    from mcp import Client, MCPError
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    CURRENT = True
except ImportError:
    from mcp import McpError as MCPError
    from mcp.client.streamable_http import streamablehttp_client

    CURRENT = False


def say(**answer):
    print(json.dumps(answer), flush=True)


@contextlib.asynccontextmanager
async def connect(url, token, mode):
    """A session, and the protocol it speaks."""
    headers = {"Authorization": f"Bearer {token}"}
    if url.startswith("{"):
        server = stdio_client(StdioServerParameters(**json.loads(url)))
        if CURRENT:
            async with Client(server, mode=mode) as client:
                yield client.session, client.protocol_version
        else:
            async with server as (reader, writer), ClientSession(reader, writer) as session:
                yield session, (await session.initialize()).protocolVersion
    elif CURRENT:
        async with create_mcp_http_client(headers=headers) as http:
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                yield client.session, client.protocol_version
    else:
        async with streamablehttp_client(url, headers=headers) as (reader, writer, _):
            async with ClientSession(reader, writer) as session:
                yield session, (await session.initialize()).protocolVersion


async def call(session, order, scope):
    async def progress(done, _total, message):
        say(id=order["id"], progress=[done, message])

    timeout = order.get("timeout")
    if timeout is not None and not CURRENT:
        timeout = timedelta(seconds=timeout)
    with scope:
        try:
            result = await session.call_tool(
                order["call"],
                order.get("arguments"),
                read_timeout_seconds=timeout,
                progress_callback=progress if order.get("progress") else None,
            )
            say(id=order["id"], result=result.model_dump(by_alias=True, mode="json"))
        except MCPError as e:
            say(id=order["id"], error={"code": e.error.code, "message": e.error.message})
    if scope.cancelled_caught:
        say(id=order["id"], gone=True)


async def main(url, token, mode):
    scopes = {}
    async with connect(url, token, mode) as (session, protocol), anyio.create_task_group() as calls:
        say(protocol=protocol)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            if order.get("tools"):
                tools = await session.list_tools()
                say(tools=tools.model_dump(by_alias=True, mode="json")["tools"])
            elif "cancel" in order:
                scopes[order["cancel"]].cancel()
            else:
                scope = scopes[order["id"]] = anyio.CancelScope()
                calls.start_soon(call, session, order, scope)


anyio.run(main, *sys.argv[1:])
