//! NATS, as somebody else would write its engine: on the SDK alone.
//!
//! The server reads the password from its environment. There is no client in its image; its protocol is lines of text, so
//! the probe speaks it through `nc`.

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Step, Variable, export_engine, literal,
};

/// The engine.
pub struct Nats;

const CONFIG: &str = "/etc/nats-sandbox.conf";

/// A conversation with the server at `$1` and `$2`: says who it is, then `$SAY`, and ends well with a line that begins with
/// `$WANTED`. What nobody answers comes back as a message with a header.
const TALK: &str = r#"
dir=$(mktemp -d)
mkfifo "$dir/in" "$dir/out"
timeout 6 nc "$1" "$2" <"$dir/in" >"$dir/out" &
trap 'kill $! 2>/dev/null' EXIT
exec 3>"$dir/in" 4<"$dir/out"
rm -r "$dir"
while IFS= read -r line <&4; do
  case $line in
  INFO*)
    printf 'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"user":"%s","pass":"%s"}\r\n' \
      "$3" "$PASSWORD" >&3
    printf '%bPING\r\n' "$SAY" >&3
    ;;
  "$WANTED"*) exit 0 ;;
  -ERR* | HMSG*) exit 1 ;;
  esac
done
exit 1
"#;

impl Engine for Nats {
    fn describe() -> Descriptor {
        Descriptor::new("nats", "nats", env!("CARGO_PKG_VERSION"), "NATS, a broker, with an account of its own")
            .setting("image", "nats:2-alpine", "The image to run")
            .setting("max-payload", "1048576", "How many bytes a message may have")
            .feature("jetstream", "Streams, which keep messages, and key-value buckets")
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        let streams = request.wants("jetstream") || request.retained;
        let mut container = Container::new(request.setting("image")?)
            .user("nobody")
            .entrypoint(["nats-server", "--config", CONFIG])
            // In quotes, for the server reads it like a value of its configuration, and digits would be a number.
            .env("ACCOUNT_PASSWORD", "\"{password}\"")
            .file(CONFIG, 0o644, literal(&config(&request, streams)?))
            .port(4222)
            .account(Account::user("sandbox"));
        container = match streams {
            // What lies in the tmpfs takes from the same memory.
            true => container
                .data_dir("/data", request.memory_share(2))
                .env("GOMEMLIMIT", request.memory_share(4).to_string()),
            false => container.env("GOMEMLIMIT", (request.memory_share(4) * 3).to_string()),
        };
        let mut recipe = Recipe::new(container, talk("", "PONG")).deadline_secs(15).variables([
            Variable::prefixed("NATS_HOST", "{host}"),
            Variable::prefixed("NATS_PORT", "{port}"),
            Variable::prefixed("NATS_USER", "{user}"),
            Variable::prefixed("NATS_PASSWORD", "{password}"),
            Variable::plain("NATS_URL", "nats://{user}:{password}@{host}:{port}"),
        ]);
        for feature in &request.features {
            if feature != "jetstream" {
                return Err(Error::UnsupportedFeature(feature.clone()));
            }
            let ask = r"SUB answers 1\r\nPUB $JS.API.INFO answers 0\r\n\r\n";
            let about = r#"{"type":"io.nats.jetstream.api.v1.account_info_response""#;
            recipe = recipe.verify(Step::confirm(feature, talk(ask, about)));
        }
        Ok(recipe)
    }
}

export_engine!(Nats);

fn config(request: &Request, streams: bool) -> Result<String, Error> {
    let payload: u32 = request.setting_as("max-payload")?;
    if !(1..=64 << 20).contains(&payload) {
        return Err(Error::BadSetting(("max-payload".to_owned(), "it is a number from 1 to 67108864".to_owned())));
    }
    let streams = match streams {
        true => format!(
            "jetstream {{ store_dir: /data/nats, max_memory_store: {}, max_file_store: {} }}\n",
            request.memory_share(8),
            request.memory_share(8) * 3
        ),
        false => String::new(),
    };
    Ok(format!(
        "port: 4222
max_payload: {payload}
authorization {{
  users = [ {{ user: sandbox, password: $ACCOUNT_PASSWORD }} ]
}}
{streams}"
    ))
}

/// A conversation as the agent, over the container's own address.
fn talk(say: &str, wanted: &str) -> Command {
    let script = literal(TALK);
    Command::new(["sh", "-c", &script, "talk", "{address}", "{port}", "{user}"])
        .env("PASSWORD", "{password}")
        .env("SAY", literal(say))
        .env("WANTED", literal(wanted))
}
