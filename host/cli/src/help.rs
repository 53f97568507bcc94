//! What `--help` says beside the options: examples for each command, and what the exit codes mean.

use clap::{Command, CommandFactory as _};

use crate::Cli;

/// The exit code where the configuration is the reason.
pub(crate) const UNUSABLE: u8 = 3;

const EXIT_CODES: &str = "\
Exit codes:
    0  it was done
    1  it was not done, or what was looked at is not good
    2  the command line cannot be understood
    3  the configuration cannot be used: there is none, or it has to be changed first
  130  ended by an interrupt (Ctrl-C)
  143  ended by SIGTERM (`serve` ends with 0)
`up --exec` ends as its command does, and `connect` as the client does.";

/// Every command, with what one would type.
const EXAMPLES: [(&str, &str); 19] = [
    ("serve", "sandbar serve --config /etc/sandbar/sandbar.toml"),
    ("check", "sandbar check --config sandbar.toml"),
    ("sweep", "sandbar sweep --installation 5e0c1f9a3b7d2846 --dry-run"),
    ("mcp", "sandbar mcp\nsandbar mcp --home /tmp/sandbar"),
    (
        "up",
        "eval \"$(sandbar up postgres redis --with vector)\"\nsandbar up postgres --json\nsandbar up postgres --exec 'pytest tests/db'",
    ),
    ("down", "sandbar down"),
    ("ps", "sandbar ps\nsandbar ps --json"),
    ("logs", "sandbar logs postgres -n 20"),
    ("connect", "sandbar connect postgres\nsandbar connect postgres -- -c 'select 1'"),
    ("schema", "sandbar schema api\nsandbar schema config"),
    ("completions", "sandbar completions bash > ~/.local/share/bash-completion/completions/sandbar"),
    ("engine new", "sandbar engine new cache"),
    ("engine build", "sandbar engine build cache\nsandbar engine build engines/postgres engines/redis --out engines.d"),
    ("engine inspect", "sandbar engine inspect engines.d/cache.wasm"),
    (
        "engine test",
        "sandbar engine test engines.d/cache.wasm\nsandbar engine test engines.d/cache.wasm --docker --features counters",
    ),
    ("engine bench", "sandbar engine bench engines.d/cache.wasm"),
    (
        "engine add",
        "sandbar engine add engines.d/cache.wasm --dry-run\nsandbar engine add engines.d/cache.wasm --update\n\
         sandbar engine add engines.d/box.wasm --name node --slug node --setting image=node:22",
    ),
    ("engine list", "sandbar engine list"),
    ("engine remove", "sandbar engine remove cache"),
];

/// The command line.
pub(crate) fn cli() -> Command {
    with_examples(Cli::command(), "").after_help(EXIT_CODES)
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_owned();
        let examples = EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, lines)| lines.replace('\n', "\n  "));
        command.mut_subcommand(&name, |sub| {
            let sub = with_examples(sub, &path);
            match examples {
                Some(lines) => sub.after_help(format!("Examples:\n  {lines}")),
                None => sub,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_examples_that_are_understood() {
        fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name()).trim_start().to_owned();
                if sub.has_subcommands() { leaves(sub, &path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        leaves(&Cli::command(), "", &mut found);
        let mut told: Vec<_> = EXAMPLES.iter().map(|(of, _)| (*of).to_owned()).collect();
        found.sort();
        told.sort();
        assert_eq!(found, told);
        for (of, lines) in EXAMPLES {
            for line in lines.lines() {
                // As a shell would hand them over, without what is around the command.
                let words = line.trim_start_matches("eval \"$(").trim_end_matches(")\"").split(" > ").next().unwrap();
                let quoted = words.split('\'').enumerate();
                let words = quoted.flat_map(
                    |(i, part)| {
                        if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
                    },
                );
                let words: Vec<_> = words.collect();
                assert!(line.contains(&format!("sandbar {of}")), "{line}");
                cli().try_get_matches_from(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
        }
        let help = |args: &[&str]| cli().try_get_matches_from(args).unwrap_err().to_string();
        assert!(help(&["sandbar", "--help"]).contains("Exit codes:"));
        assert!(
            help(&["sandbar", "engine", "add", "--help"]).contains("sandbar engine add engines.d/cache.wasm --update")
        );
    }
}
