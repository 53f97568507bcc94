"""Asks services until they answer, for `bench compare`: the same for whoever started them.

Reads a line of JSON with a URL for each service, and answers `{}` when each of them has answered a query.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pymongo
import redis

PATIENCE = 60
PAUSE = 0.005


def postgres(url):
    with psycopg.connect(url, connect_timeout=PATIENCE) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def ask_redis(url):
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def mongo(url):
    with pymongo.MongoClient(url, directConnection=True, serverSelectionTimeoutMS=250) as client:
        client.admin.list_collection_names()


ASK = {"postgres": postgres, "redis": ask_redis, "mongo": mongo}


def until_it_answers(service, url):
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ASK[service](url)
        except (psycopg.OperationalError, redis.exceptions.ConnectionError, pymongo.errors.PyMongoError):
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)


with ThreadPoolExecutor() as pool:
    for line in sys.stdin:
        services = json.loads(line)
        list(pool.map(until_it_answers, services.keys(), services.values()))
        print("{}", flush=True)
