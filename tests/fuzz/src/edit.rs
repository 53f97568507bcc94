//! Changes to a recipe, read from bytes.

use sandbar_core::engine::{Account, Command, DataDir, Expectation, File, Recipe, Step, Variable};

/// What is put into texts: what means something somewhere.
const TOKENS: [&str; 44] = [
    "\0",
    "\n",
    "\r",
    "\u{1b}[31m",
    "\u{202e}",
    "{",
    "}",
    "{{",
    "}}",
    "{user}",
    "{password}",
    "{admin_password}",
    "{database}",
    "{host}",
    "{port}",
    "{address}",
    "{namespace}",
    "{nothing}",
    "/",
    "//",
    "/..",
    "/.",
    "/proc",
    "/sys",
    "/dev/shm",
    "/etc/passwd",
    "/data",
    "..",
    ":",
    ",",
    "=",
    "@",
    "@sha256:",
    "$(id)",
    "`",
    "'",
    "\"",
    " ",
    "PATH",
    "LD_PRELOAD",
    "SANDBAR_",
    "SANDBAR_SECRET_",
    "é",
    "-",
];

const NUMBERS: [u64; 10] = [0, 1, 99, 0o777, 0o4755, 60_001, 300_001, 1 << 20, u32::MAX as u64, u64::MAX];

/// Bytes that are used up, and then zero.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// An index, if there is anything.
    fn below(&mut self, count: usize) -> Option<usize> {
        let number = usize::from(self.next()) << 8 | usize::from(self.next());
        number.checked_rem(count)
    }

    fn one_of<'t, T>(&mut self, all: &'t mut [T]) -> Option<&'t mut T> {
        let index = self.below(all.len())?;
        all.get_mut(index)
    }

    fn number(&mut self) -> u64 {
        match self.next() {
            index if usize::from(index) < NUMBERS.len() => NUMBERS[usize::from(index)],
            other => u64::from(other) << (self.next() % 56),
        }
    }
}

/// Changes a recipe, for as long as there are bytes.
pub(crate) fn edit(recipe: &mut Recipe, data: &[u8]) {
    let mut bytes = Bytes(data);
    for _ in 0..16 {
        if bytes.0.is_empty() {
            return;
        }
        match bytes.next() % 8 {
            0 => numbers(recipe, &mut bytes),
            1 => lists(recipe, &mut bytes),
            2 => options(recipe, &mut bytes),
            _ => {
                let mut texts = texts(recipe);
                if let Some(index) = bytes.below(texts.len()) {
                    text(texts.swap_remove(index), &mut bytes);
                }
            }
        }
    }
}

fn text(text: &mut String, bytes: &mut Bytes<'_>) {
    let at = bytes.below(text.chars().count() + 1).unwrap_or_default();
    let at = text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    let token = TOKENS[usize::from(bytes.next()) % TOKENS.len()];
    match bytes.next() % 6 {
        0 => token.clone_into(text),
        1 => text.truncate(at),
        2 if at < text.len() => drop(text.remove(at)),
        3 => text.insert(at, char::from(bytes.next())),
        4 => text.insert_str(at, &token.repeat(usize::from(bytes.next()) * 8)),
        _ => text.insert_str(at, token),
    }
}

fn numbers(recipe: &mut Recipe, bytes: &mut Bytes<'_>) {
    let (which, number) = (bytes.next() % 7, bytes.number());
    let small = u32::try_from(number).unwrap_or(u32::MAX);
    let c = &mut recipe.container;
    match which {
        0 => recipe.deadline_ms = small,
        1 => recipe.ready.timeout_ms = small,
        2 => c.shm_bytes = number,
        3 => c.port = u16::try_from(number).ok(),
        4 => bytes.one_of(&mut c.data).into_iter().for_each(|d| d.tmpfs_bytes = number),
        5 => bytes.one_of(&mut c.files).into_iter().for_each(|f| f.mode = small),
        _ => bytes.one_of(&mut recipe.verify).into_iter().for_each(|s| s.run.timeout_ms = small),
    }
}

fn lists(recipe: &mut Recipe, bytes: &mut Bytes<'_>) {
    let (which, count) = (bytes.next() % 9, usize::from(bytes.next() % 64));
    let c = &mut recipe.container;
    let step = Step { name: "more".to_owned(), feature: None, run: recipe.ready.clone() };
    match which {
        0 => c.env.extend((0..count).map(|i| (format!("V{i}"), "{password}".to_owned()))),
        1 => c.files.push(File { path: format!("/f{count}"), mode: 0o644, content: "{user}".to_owned() }),
        2 => c.data.push(DataDir { path: format!("/data{count}"), tmpfs_bytes: 1 << 20 }),
        3 => c.capabilities.push("CHOWN".to_owned()),
        4 => c.more.push(("key".to_owned(), String::new())),
        5 => recipe.setup.extend(vec![step; count]),
        6 => recipe.verify.truncate(count / 8),
        7 => recipe.variables.push(Variable {
            name: format!("V{count}"),
            value: "{host}".to_owned(),
            prefixed: count % 2 == 0,
        }),
        _ => recipe.ready.argv.extend((0..count * 4).map(|i| i.to_string())),
    }
}

fn options(recipe: &mut Recipe, bytes: &mut Bytes<'_>) {
    let c = &mut recipe.container;
    match bytes.next() % 8 {
        0 => c.account = None,
        1 => c.account = Some(Account { user: Some("user".to_owned()), database: None, admin: true }),
        2 => c.work_folder = Some("/work".to_owned()),
        3 => c.entrypoint = Some(Vec::new()),
        4 => c.port = None,
        5 => recipe.ready.user = Some("root".to_owned()),
        6 => recipe.ready.expect = Expectation::StdoutHasLines(vec!["PONG".to_owned(); usize::from(bytes.next())]),
        _ => recipe.ready.expect = Expectation::StdoutIs("PONG".to_owned()),
    }
}

/// Every text of a recipe.
fn texts(recipe: &mut Recipe) -> Vec<&mut String> {
    let Recipe { container: c, ready, setup, verify, variables, .. } = recipe;
    let mut texts = vec![&mut c.image, &mut c.user];
    texts.extend(
        c.entrypoint.iter_mut().flatten().chain(&mut c.command).chain(&mut c.capabilities).chain(&mut c.work_folder),
    );
    texts.extend(c.env.iter_mut().chain(&mut c.more).flat_map(|(name, value)| [name, value]));
    texts.extend(c.files.iter_mut().flat_map(|file| [&mut file.path, &mut file.content]));
    texts.extend(c.data.iter_mut().map(|dir| &mut dir.path));
    texts.extend(c.account.iter_mut().flat_map(|account| account.user.iter_mut().chain(&mut account.database)));
    texts.extend(of_command(ready));
    for step in setup.iter_mut().chain(verify) {
        texts.push(&mut step.name);
        texts.extend(&mut step.feature);
        texts.extend(of_command(&mut step.run));
    }
    texts.extend(variables.iter_mut().flat_map(|variable| [&mut variable.name, &mut variable.value]));
    texts
}

fn of_command(command: &mut Command) -> Vec<&mut String> {
    let Command { argv, env, user, expect, .. } = command;
    let mut texts: Vec<&mut String> = argv.iter_mut().chain(user).collect();
    texts.extend(env.iter_mut().flat_map(|(name, value)| [name, value]));
    match expect {
        Expectation::ExitZero => {}
        Expectation::StdoutIs(text) => texts.push(text),
        Expectation::StdoutHasLines(lines) => texts.extend(lines),
    }
    texts
}
