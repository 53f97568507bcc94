"""Reaches each database by what its own clients for Python are told by variables, and nothing else; says what they answer."""

import json
import os

import psycopg
import pymongo
import redis

answers = {}

with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    connection.execute("CREATE TABLE notes (id serial PRIMARY KEY, note jsonb)")
    connection.execute("INSERT INTO notes (note) VALUES (%s)", [json.dumps({"from": "psycopg"})])
# The client reads PGHOST and its like itself.
with psycopg.connect("") as connection:
    answers["postgres"] = connection.execute("SELECT current_user, note ->> 'from' FROM notes").fetchone()

with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
    with client.pipeline() as pipeline:
        pipeline.hset("note", mapping={"from": "redis-py"}).hgetall("note")
        answers["redis"] = pipeline.execute()[1]

with pymongo.MongoClient(os.environ["MONGODB_URI"], serverSelectionTimeoutMS=10_000) as client:
    notes = client["suite"]["notes"]
    notes.insert_many([{"from": "pymongo", "number": number} for number in range(3)])
    answers["mongo"] = [note["number"] for note in notes.find({"number": {"$gt": 0}}).sort("number")]

print(json.dumps(answers))
