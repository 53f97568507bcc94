"""Testcontainers for Python as its users write it, played by `bench compare`: with the orders and answers of `../rust`."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from testcontainers.core.wait_strategies import LogMessageWaitStrategy
from testcontainers.community.mongodb import MongoDbContainer
from testcontainers.community.postgres import PostgresContainer
from testcontainers.community.redis import RedisContainer

PASSWORD = "of-the-comparison"


def containers(postgres, redis, mongo, label):
    key, value = label.split("=", 1)
    options = {"labels": {key: value}}
    # The module waits for what MongoDB says when it listens, and the stand-in says nothing then. The image says when the
    # account is made.
    ready = LogMessageWaitStrategy(re.compile("MongoDB init process complete"))
    return {
        "postgres": PostgresContainer(postgres, password=PASSWORD, driver=None).with_kwargs(**options),
        "redis": RedisContainer(redis, password=PASSWORD).with_kwargs(**options),
        "mongo": MongoDbContainer(mongo, password=PASSWORD).waiting_for(ready).with_kwargs(**options),
    }


def url(service, container):
    if service == "redis":
        return f"redis://:{PASSWORD}@{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/"
    url = container.get_connection_url()
    return f"{url}/?authSource=admin" if service == "mongo" else url


def main(*args):
    running = {}
    with ThreadPoolExecutor() as pool:
        for line in sys.stdin:
            order = json.loads(line)
            if "start" in order:
                running = containers(*args)
                if order["start"] == "at once":
                    list(pool.map(lambda container: container.start(), running.values()))
                else:
                    for container in running.values():
                        container.start()
                answer = {service: url(service, container) for service, container in running.items()}
            else:
                list(pool.map(lambda container: container.stop(), running.values()))
                answer = {}
            print(json.dumps(answer), flush=True)


main(*sys.argv[1:])
