//! Constructors for the parts of a recipe, with the defaults that suit most services. It checks nothing: the host does,
//! and [`crate::testing`] in an author's tests.

use crate::{Account, Command, Container, DataDir, Expectation, File, Recipe, Step, Template, Variable};

/// How long one run of a command may take unless said otherwise: Docker calls have 10 s, and this leaves a margin.
const COMMAND_TIMEOUT_MS: u32 = 8_000;

/// How long a service may take to become ready unless said otherwise.
const DEADLINE_MS: u32 = 60_000;

fn texts<T: Into<String>>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(Into::into).collect()
}

impl Container {
    /// A container of this image as it is: its own entrypoint, command and user; no data, port, account or capability.
    pub fn new(image: impl Into<Template>) -> Self {
        Self {
            image: image.into(),
            entrypoint: None,
            command: Vec::new(),
            user: String::new(),
            env: Vec::new(),
            files: Vec::new(),
            data: Vec::new(),
            work_folder: None,
            shm_bytes: 0,
            capabilities: Vec::new(),
            port: None,
            account: None,
            more: Vec::new(),
        }
    }

    /// Replaces the image's entrypoint. Not a template: braces mean themselves.
    #[must_use]
    pub fn entrypoint<T: Into<String>>(mut self, argv: impl IntoIterator<Item = T>) -> Self {
        self.entrypoint = Some(texts(argv));
        self
    }

    /// Replaces the image's command. Not a template: braces mean themselves.
    #[must_use]
    pub fn command<T: Into<String>>(mut self, argv: impl IntoIterator<Item = T>) -> Self {
        self.command = texts(argv);
        self
    }

    /// Runs it as this user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Adds an environment variable. Passwords belong here: `{password}`, `{admin_password}`.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<Template>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Puts a file in before the start. The content is a template: [`crate::literal`] doubles the braces of a text.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>, mode: u32, content: impl Into<Template>) -> Self {
        self.files.push(File { path: path.into(), mode, content: content.into() });
        self
    }

    /// Adds a directory whose content is data, with its size for a throwaway sandbox.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<String>, tmpfs_bytes: u64) -> Self {
        self.data.push(DataDir { path: path.into(), tmpfs_bytes });
        self
    }

    /// Names the folder in which commands run and files are kept, which makes it a box.
    #[must_use]
    pub fn work_folder(mut self, path: impl Into<String>) -> Self {
        self.work_folder = Some(path.into());
        self
    }

    /// Sizes `/dev/shm`.
    #[must_use]
    pub fn shm(mut self, bytes: u64) -> Self {
        self.shm_bytes = bytes;
        self
    }

    /// Adds a Linux capability that it cannot do without.
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>) -> Self {
        self.capabilities.push(name.into());
        self
    }

    /// Says on which TCP port it serves.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Says which account the agent gets.
    #[must_use]
    pub fn account(mut self, account: Account) -> Self {
        self.account = Some(account);
        self
    }
}

impl Account {
    /// A user with a password.
    pub fn user(name: impl Into<String>) -> Self {
        Self { user: Some(name.into()), ..Self::password_only() }
    }

    /// A password, where the service knows no users.
    #[must_use]
    pub fn password_only() -> Self {
        Self { user: None, database: None, admin: false }
    }

    /// Names the database that the account uses.
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// Asks for an administrator's password too, which the agent never gets.
    #[must_use]
    pub fn with_admin(mut self) -> Self {
        self.admin = true;
        self
    }
}

impl Command {
    /// A command that succeeds with exit code 0, runs as the container's user, and has 8 s. Never put a secret into the
    /// arguments: give it with [`Command::env`].
    pub fn new<T: Into<Template>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self {
            argv: texts(argv),
            env: Vec::new(),
            user: None,
            expect: Expectation::ExitZero,
            timeout_ms: COMMAND_TIMEOUT_MS,
        }
    }

    /// Adds a variable for this command alone.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<Template>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs it as another user than the container's.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Demands that standard output is exactly this, white space at its ends aside.
    #[must_use]
    pub fn expect_stdout(mut self, text: impl Into<String>) -> Self {
        self.expect = Expectation::StdoutIs(text.into());
        self
    }

    /// Demands that each of these is a line of standard output.
    #[must_use]
    pub fn expect_lines<T: Into<String>>(mut self, lines: impl IntoIterator<Item = T>) -> Self {
        self.expect = Expectation::StdoutHasLines(texts(lines));
        self
    }

    /// Says how long one run may take, in milliseconds.
    #[must_use]
    pub fn timeout_ms(mut self, milliseconds: u32) -> Self {
        self.timeout_ms = milliseconds;
        self
    }
}

impl Step {
    /// A step that is about no feature in particular.
    pub fn new(name: impl Into<String>, run: Command) -> Self {
        Self { name: name.into(), feature: None, run }
    }

    /// The step that activates a feature; its name says so.
    #[must_use]
    pub fn activate(feature: &str, run: Command) -> Self {
        Self { name: format!("activate {feature}"), feature: Some(feature.to_owned()), run }
    }

    /// The step that confirms a feature; its name says so. It must change nothing.
    #[must_use]
    pub fn confirm(feature: &str, run: Command) -> Self {
        Self { name: format!("confirm {feature}"), feature: Some(feature.to_owned()), run }
    }
}

impl Variable {
    /// A variable before whose name the host writes `<NAMESPACE>_TEST_`. Needs no grant.
    pub fn prefixed(name: impl Into<String>, value: impl Into<Template>) -> Self {
        Self { name: name.into(), value: value.into(), prefixed: true }
    }

    /// A variable of just this name, for tools that look for it. Needs a grant.
    pub fn plain(name: impl Into<String>, value: impl Into<Template>) -> Self {
        Self { name: name.into(), value: value.into(), prefixed: false }
    }
}

impl Recipe {
    /// A recipe that has 60 s to become ready, activates nothing and gives the agent no variables.
    #[must_use]
    pub fn new(container: Container, ready: Command) -> Self {
        Self {
            container,
            ready,
            deadline_ms: DEADLINE_MS,
            setup: Vec::new(),
            verify: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Says how long the probe may take to succeed for the first time.
    #[must_use]
    pub fn deadline_secs(mut self, seconds: u32) -> Self {
        self.deadline_ms = seconds.saturating_mul(1_000);
        self
    }

    /// Adds a step that runs once after readiness.
    #[must_use]
    pub fn setup(mut self, step: Step) -> Self {
        self.setup.push(step);
        self
    }

    /// Adds a step that runs after those of [`Recipe::setup`] and whenever a running container is adopted.
    #[must_use]
    pub fn verify(mut self, step: Step) -> Self {
        self.verify.push(step);
        self
    }

    /// Adds a variable that the agent gets.
    #[must_use]
    pub fn variable(mut self, variable: Variable) -> Self {
        self.variables.push(variable);
        self
    }

    /// Adds several variables, in order.
    #[must_use]
    pub fn variables(mut self, variables: impl IntoIterator<Item = Variable>) -> Self {
        self.variables.extend(variables);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_ask_for_nothing() {
        let container = Container::new("x:1");
        assert_eq!(container.entrypoint, None);
        assert!(container.env.is_empty() && container.capabilities.is_empty() && container.more.is_empty());
        let command = Command::new(["true"]);
        assert_eq!((command.expect, command.timeout_ms), (Expectation::ExitZero, 8_000));
    }

    #[test]
    fn order_is_kept() {
        let container = Container::new("x:1").env("B", "1").env("A", "{password}");
        assert_eq!(container.env, [("B".to_owned(), "1".to_owned()), ("A".to_owned(), "{password}".to_owned())]);
        let recipe = Recipe::new(container, Command::new(["true"]))
            .deadline_secs(15)
            .variables([Variable::plain("Z", "{host}"), Variable::prefixed("Y", "{port}")]);
        assert_eq!(recipe.deadline_ms, 15_000);
        assert_eq!(recipe.variables.iter().map(|v| v.prefixed).collect::<Vec<_>>(), [false, true]);
    }
}
