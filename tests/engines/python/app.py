"""A key-value store with a password of its own: an engine in Python, built by componentize-py from the contract alone.

It is what `sandbar engine new` makes in Rust, so the two can be read side by side.
"""

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import engine
from wit_world.exports.engine import (
    Account,
    Command,
    Container,
    Descriptor,
    Error_BadSetting,
    Error_Other,
    Error_UnsupportedFeature,
    Expectation,
    Expectation_StdoutHasLines,
    Expectation_StdoutIs,
    Feature,
    Recipe,
    Request,
    Setting,
    Step,
    Variable,
)

# A library of functions, as an example of something that is activated in a server that runs.
COUNTERS = """#!lua name=counters
redis.register_function('count', function(keys) return redis.call('INCR', keys[1]) end)"""

POLICIES = ["noeviction", "allkeys-lru", "allkeys-lfu"]


class Engine(exports.Engine):
    """The engine: componentize-py looks for a class with the name of the interface."""

    def describe(self) -> Descriptor:
        return Descriptor(
            name="pycache",
            slug="pycache",
            version="0.1.0",
            summary="A key-value store with a password of its own",
            features=[Feature("counters", "A function `count` that counts up a key")],
            settings=[
                Setting("image", "redis:8-alpine", "The image to run"),
                Setting("when-full", "noeviction", "What is done where the memory is full"),
            ],
            more=[],
        )

    def plan(self, request: Request) -> Recipe:
        if request.retained:
            raise Err(Error_Other("nothing is kept here, so it cannot be retained"))
        setup, verify = [], []
        for feature in request.features:
            if feature != "counters":
                raise Err(Error_UnsupportedFeature(feature))
            load = client(["function", "load", "replace", COUNTERS], Expectation_StdoutIs("counters"))
            found = client(["function", "list"], Expectation_StdoutHasLines(["counters"]))
            setup.append(Step(f"activate {feature}", feature, load))
            verify.append(Step(f"confirm {feature}", feature, found))
        return Recipe(
            container=container(request),
            # As the agent's account and over the container's own address: the loopback may answer too early, or anybody.
            ready=client(["ping"], Expectation_StdoutIs("PONG")),
            deadline_ms=15_000,
            setup=setup,
            verify=verify,
            variables=[
                # The host writes its own prefix before the names of these.
                Variable("PYCACHE_HOST", "{host}", True),
                Variable("PYCACHE_PORT", "{port}", True),
                Variable("PYCACHE_PASSWORD", "{password}", True),
                # A variable of just this name has to be granted.
                Variable("PYCACHE_URL", "redis://default:{password}@{host}:{port}/0", False),
            ],
        )


def container(request: Request) -> Container:
    settings = dict(request.settings)
    # A host sends every setting; whoever asks without gets what is set by default.
    image, policy = settings.get("image", "redis:8-alpine"), settings.get("when-full", POLICIES[0])
    if policy not in POLICIES:
        raise Err(Error_BadSetting(("when-full", f"it is one of {', '.join(POLICIES)}")))
    # The shell reads the password from the environment, so that it stands in no argument list and no file.
    start = f"""exec redis-server - <<EOF
port 6379
protected-mode no
save ""
maxmemory {request.memory_bytes // 2}
maxmemory-policy {policy}
requirepass $ACCOUNT_PASSWORD
EOF
"""
    return Container(
        image=image,
        entrypoint=["sh", "-c", start],
        command=[],
        user="redis",
        env=[("ACCOUNT_PASSWORD", "{password}")],
        files=[],
        data=[],
        work_folder=None,
        shm_bytes=0,
        capabilities=[],
        port=6379,
        account=Account(user=None, database=None, admin=False),
        more=[],
    )


def client(command: list[str], expect: Expectation) -> Command:
    """A command of the service's own client, which every image of it has."""
    return Command(
        argv=["redis-cli", "-h", "{address}", "-p", "{port}", "--no-auth-warning", "-e", *map(literal, command)],
        env=[("REDISCLI_AUTH", "{password}")],
        user=None,
        expect=expect,
        timeout_ms=5_000,
    )


def literal(text: str) -> str:
    """Text with braces of its own, where a template is wanted."""
    return text.replace("{", "{{").replace("}", "}}")
