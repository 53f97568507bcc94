//! The binary `sandbar`: reads the configuration, starts the host, and holds the commands for people.

mod check;
mod config;
mod edit;
mod engine;
mod engines;
mod help;
mod local;
mod reload;
mod schema;
mod serve;
mod settings;
mod state;
mod sweep;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches as _, Parser, Subcommand};
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, filter_fn};
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::Unusable;
use crate::settings::Problems;

/// Throwaway databases for AI coding agents.
#[derive(Debug, Parser)]
#[command(name = "sandbar", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the host.
    Serve {
        /// The configuration file.
        #[arg(long, default_value = "sandbar.toml")]
        config: PathBuf,
    },
    /// Say what a configuration lets each engine do, and everything that is wrong with it. Needs no Docker.
    Check {
        /// The configuration file.
        #[arg(long, default_value = "sandbar.toml")]
        config: PathBuf,
    },
    /// Remove what an installation left whose state directory is lost: its containers and its networks.
    Sweep {
        /// Its id: the label `<namespace>.installation` of its containers.
        #[arg(long)]
        installation: String,
        /// Only say what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// The configuration file, for Docker's address and the namespace.
        #[arg(long, default_value = "sandbar.toml")]
        config: PathBuf,
    },
    /// Serve an editor's agent by MCP over standard input and output, with a host of this user's own.
    Mcp {
        #[command(flatten)]
        place: local::Place,
    },
    Up(local::Up),
    Down(local::Down),
    Ps(local::Ps),
    Logs(local::Logs),
    Connect(local::Connect),
    /// Print a schema.
    Schema {
        /// Of what.
        of: Schema,
    },
    /// Print what has a shell complete this command.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Commands for authors of engines, and for operators who admit them.
    #[command(subcommand)]
    Engine(engine::EngineCommand),
}

/// What there is a schema of.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Schema {
    /// The verbs, as OpenAPI 3.1.
    Api,
    /// The configuration, as JSON Schema.
    Config,
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&help::cli().get_matches()).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            let of_configuration = error.chain().any(|cause| cause.is::<Unusable>() || cause.is::<Problems>());
            if of_configuration { ExitCode::from(help::UNUSABLE) } else { ExitCode::FAILURE }
        }
    }
}

/// Answers the exit code.
fn run(cli: Cli) -> Result<u8> {
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match cli.command {
        Command::Serve { config } => {
            log();
            raise_descriptors();
            tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve::serve(&config))?;
            Ok(0)
        }
        Command::Check { config } => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let report = runtime.block_on(check::check(&config))?;
            print!("{}", report.text);
            match report.problems {
                0 => Ok(0),
                1 => Err(Unusable("1 problem".to_owned()).into()),
                several => Err(Unusable(format!("{several} problems")).into()),
            }
        }
        Command::Sweep { installation, dry_run, config } => {
            single()?.block_on(sweep::sweep(&config, &installation, dry_run)).map(|()| 0)
        }
        Command::Mcp { place } => {
            let runtime = single()?;
            runtime.block_on(local::mcp(local::Home::open(&place)?))?;
            // Standard input is read on a thread that nobody can stop.
            runtime.shutdown_background();
            Ok(0)
        }
        Command::Up(up) => single()?.block_on(local::up(up)),
        Command::Down(down) => single()?.block_on(local::down(down)),
        Command::Ps(ps) => single()?.block_on(local::ps(ps)),
        Command::Schema { of } => {
            let schema = match of {
                Schema::Api => schema::api(),
                Schema::Config => schema::config(),
            };
            println!("{schema:#}");
            Ok(0)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut help::cli(), "sandbar", &mut std::io::stdout());
            Ok(0)
        }
        Command::Logs(logs) => single()?.block_on(local::logs(logs)),
        Command::Connect(connect) => single()?.block_on(local::connect(connect)),
        // What is wrong was printed as a result.
        Command::Engine(command) => engine::run(command).map(|is_good| u8::from(!is_good)),
    }
}

/// Takes as many file descriptors as this process may have: every connection of a caller and to Docker needs one, and the
/// usual number is from times when `select` could not count further.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the number of file descriptors stays as it is");
    }
}

/// Logs go to standard error: for a person on a terminal, as JSON otherwise. `RUST_LOG` chooses how much.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // It would log every message, and with it passwords and tokens; nobody can ask for that.
    let quiet = filter_fn(|of| !of.target().starts_with("rmcp") || *of.level() == Level::ERROR);
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = if std::io::stderr().is_terminal() { logs.boxed() } else { logs.json().boxed() };
    tracing_subscriber::registry().with(logs.with_filter(filter.and(quiet))).init();
}
