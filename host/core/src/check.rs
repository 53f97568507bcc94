//! The one place where a recipe becomes something the host will carry out. An engine is not trusted: everything it
//! answers is compared here with the operator's grants and with what is sound at all, when the engine is loaded and
//! again before each container. A [`Checked`] recipe can only come from here.

use std::collections::BTreeSet;
use std::fmt;

use crate::engine::{Command, Expectation, Pairs, Recipe, Request, Step};
use crate::error::shown;
use crate::image::{Image, ImagePattern};
use crate::name::Names;
use crate::template::{self, Placeholder, Values};

/// What an operator lets an engine use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Images, compared in their normalised form before the operator's mapping.
    pub images: Vec<ImagePattern>,
    /// Linux capabilities, without `CAP_`.
    pub capabilities: Vec<String>,
    /// Data directories, exactly.
    pub data_dirs: Vec<String>,
    /// Names of variables that do not start with the host's prefix.
    pub variables: Vec<String>,
}

/// A recipe that may be carried out for the request it was checked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    recipe: Recipe,
    image: String,
}

impl Checked {
    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The image reference, filled in.
    pub fn image(&self) -> &str {
        &self.image
    }
}

/// Why a recipe is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where in the recipe.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
    /// The line of the engine's table that would allow it, where one would.
    pub line: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)?;
        match &self.line {
            Some(line) => write!(f, "; this line would allow it: {line}"),
            None => Ok(()),
        }
    }
}

fn refuse<T>(field: impl Into<String>, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { field: field.into(), why: why.into(), line: None })
}

/// Folders of a container in which neither data nor files of an engine have any business: they are the kernel's.
const KERNEL_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Files, and folders of files, that say who is who in a container, what code its programs load, and what names mean there.
const SYSTEM_FILES: [&str; 14] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/pam.d",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
];
/// Smallest tmpfs that makes sense, in bytes.
const MIN_TMPFS: u64 = MIB;
const MIB: u64 = 1 << 20;
/// Bounds of a command's timeout in milliseconds: `timeout-ms` in the contract.
const TIMEOUT_MS: std::ops::RangeInclusive<u32> = 100..=60_000;
/// Bounds of a readiness deadline in milliseconds: `deadline-ms` in the contract.
const DEADLINE_MS: std::ops::RangeInclusive<u32> = 1_000..=300_000;
/// Stand-in for each value while templates are tried.
const SAMPLE: &str = "x";

/// Checks a recipe against the request it answers and the grants.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(recipe: Recipe, request: &Request, grants: &Grants, names: &Names) -> Result<Checked, Refusal> {
    let image = check_container(&recipe, request, grants, names)?;
    let values = samples(&recipe);
    let c = &recipe.container;
    environment("container.env", &c.env, template::IN_ENVIRONMENT, &values, names)?;
    for file in &c.files {
        text(&format!("file {}", file.path), &file.content, template::IN_FILE, &values)?;
    }
    command("ready", &recipe.ready, &values, names)?;
    if !DEADLINE_MS.contains(&recipe.deadline_ms) {
        return refuse("deadline-ms", format!("{} is outside {DEADLINE_MS:?}", recipe.deadline_ms));
    }
    steps("setup", &recipe.setup, request, &values, names)?;
    steps("verify", &recipe.verify, request, &values, names)?;
    for feature in &request.features {
        if !recipe.verify.iter().any(|s| s.feature.as_ref() == Some(feature)) {
            return refuse("verify", format!("no step confirms the feature `{feature}`"));
        }
    }
    variables(&recipe, grants, &values, names)?;
    Ok(Checked { recipe, image })
}

/// The service's own client for a person, where an engine names one in the `more` of its descriptor, as a command for a
/// container of this recipe.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn client(more: &Pairs, checked: &Checked, names: &Names) -> Result<Option<Command>, Refusal> {
    let words = |key: &str| {
        let Some((_, value)) = more.iter().find(|(k, _)| k == key) else { return Ok(None) };
        at_most(key, value.chars().count(), 1_024)?;
        Ok(Some(value.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()))
    };
    let Some(argv) = words("client")? else { return Ok(None) };
    let env = words("client-env")?.unwrap_or_default().into_iter().map(|word| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => refuse("client-env", format!("`{}` is not of the form NAME=value", shown(&word))),
    });
    let env = env.collect::<Result<Pairs, _>>()?;
    let values = samples(checked.recipe());
    // Its caller gets them.
    environment("client-env", &env, template::IN_CLIENT_ENVIRONMENT, &values, names)?;
    let client = Command { argv, env, user: None, expect: Expectation::ExitZero, timeout_ms: *TIMEOUT_MS.end() };
    command("client", &client, &values, names)?;
    Ok(Some(client))
}

/// Something for each placeholder that a recipe has.
fn samples(recipe: &Recipe) -> Values<'_> {
    let account = recipe.container.account.as_ref();
    Values {
        user: account.and_then(|a| a.user.as_deref()),
        password: account.map(|_| SAMPLE),
        admin_password: account.filter(|a| a.admin).map(|_| SAMPLE),
        database: account.and_then(|a| a.database.as_deref()),
        host: Some(SAMPLE),
        port: recipe.container.port.map(|_| "1"),
        address: Some(SAMPLE),
        namespace: Some(SAMPLE),
    }
}

fn check_container(recipe: &Recipe, request: &Request, grants: &Grants, names: &Names) -> Result<String, Refusal> {
    let c = &recipe.container;
    let values = Values { namespace: Some(names.namespace()), ..Values::default() };
    let image = template::fill(&c.image, template::IN_IMAGE, &values).or_else(|e| refuse("image", e.to_string()))?;
    let normalised = Image::parse(&image).or_else(|e| refuse("image", e.to_string()))?;
    if !grants.images.iter().any(|p| p.covers(&normalised)) {
        return not_granted("image", "images", &grants.images, &image);
    }
    if let Some((key, _)) = c.more.first() {
        return refuse("container.more", format!("this host knows no key `{}`", shown(key)));
    }
    if let Some(entrypoint) = &c.entrypoint {
        argv("entrypoint", entrypoint)?;
    }
    if !c.command.is_empty() {
        argv("command", &c.command)?;
    }
    if !c.user.is_empty() {
        user("user", &c.user)?;
    }
    for capability in &c.capabilities {
        let plain = |c: char| c.is_ascii_uppercase() || c == '_';
        if !(1..=32).contains(&capability.len()) || !capability.chars().all(plain) {
            return refuse("capabilities", format!("`{}` is no capability", shown(capability)));
        }
        if !grants.capabilities.contains(capability) {
            return not_granted("capabilities", "capabilities", &grants.capabilities, capability);
        }
    }
    let mut tmpfs = 0_u64;
    at_most("data", c.data.len(), 4)?;
    for (i, dir) in c.data.iter().enumerate() {
        path("data", &dir.path)?;
        if c.data[..i].iter().any(|d| is_below(&d.path, &dir.path) || is_below(&dir.path, &d.path)) {
            return refuse("data", format!("{} lies in another data directory", dir.path));
        }
        if !grants.data_dirs.contains(&dir.path) {
            return not_granted("data", "data_dirs", &grants.data_dirs, &dir.path);
        }
        if dir.tmpfs_bytes < MIN_TMPFS {
            return refuse("data", format!("{} has {} bytes, less than {MIN_TMPFS}", dir.path, dir.tmpfs_bytes));
        }
        tmpfs = tmpfs.saturating_add(dir.tmpfs_bytes);
    }
    if tmpfs > request.memory_bytes / 2 {
        let why = format!("{tmpfs} bytes of tmpfs are more than half of {}", request.memory_bytes);
        let line = format!("memory = \"{}m\"", tmpfs.div_ceil(MIB / 2));
        return Err(Refusal { field: "data".to_owned(), why, line: Some(line) });
    }
    if c.shm_bytes > request.memory_bytes / 8 {
        return refuse("shm-bytes", format!("{} is more than an eighth of {}", c.shm_bytes, request.memory_bytes));
    }
    at_most("files", c.files.len(), 16)?;
    if c.files.iter().map(|f| f.content.len()).sum::<usize>() > 256 << 10 {
        return refuse("files", "together they are larger than 256 KiB");
    }
    let mut seen = BTreeSet::new();
    for file in &c.files {
        path("files", &file.path)?;
        if !seen.insert(&file.path) {
            return refuse("files", format!("{} appears twice", file.path));
        }
        if let Some(dir) = c.data.iter().find(|d| is_below(&file.path, &d.path)) {
            return refuse("files", format!("{} lies in the data directory {}", file.path, dir.path));
        }
        if SYSTEM_FILES.iter().any(|system| is_below(&file.path, system)) {
            return refuse("files", format!("{} is the image's own, never an engine's", file.path));
        }
        if file.mode > 0o777 {
            return refuse("files", format!("{} has mode {:o}, more than 777", file.path, file.mode));
        }
    }
    if let Some(folder) = &c.work_folder {
        path("work-folder", folder)?;
        if let Some(dir) = c.data.iter().find(|d| is_below(&d.path, folder) || is_below(folder, &d.path)) {
            return refuse("work-folder", format!("{folder} and the data directory {} overlap", dir.path));
        }
        if let Some(file) = c.files.iter().find(|f| is_below(&f.path, folder)) {
            return refuse("work-folder", format!("the file {} lies in it", file.path));
        }
    }
    if c.port == Some(0) {
        return refuse("port", "0 is no port");
    }
    if let Some(account) = &c.account {
        for (field, value) in [("account.user", &account.user), ("account.database", &account.database)] {
            if let Some(value) = value
                && (value.len() > 63 || !template::is_plain(value))
            {
                return refuse(field, format!("`{}` must match [A-Za-z0-9._-]{{1,63}}", shown(value)));
            }
        }
    }
    Ok(image)
}

fn not_granted<T>(field: &str, key: &str, granted: &[impl ToString], value: &str) -> Result<T, Refusal> {
    let all: Vec<_> = granted.iter().map(ToString::to_string).chain([value.to_owned()]).collect();
    let line = format!("grant.{key} = {all:?}");
    Err(Refusal { field: field.to_owned(), why: format!("`{value}` was not granted"), line: Some(line) })
}

fn at_most(field: &str, len: usize, max: usize) -> Result<(), Refusal> {
    if len > max { refuse(field, format!("{len} are more than {max}")) } else { Ok(()) }
}

/// Text that goes into a container as it is: anything but NUL, bounded.
fn raw(field: &str, s: &str) -> Result<(), Refusal> {
    if s.contains('\0') {
        return refuse(field, "it contains NUL");
    }
    if s.len() > 256 << 10 {
        return refuse(field, "it is longer than 256 KiB");
    }
    Ok(())
}

fn argv(field: &str, argv: &[String]) -> Result<(), Refusal> {
    at_most(field, argv.len(), 128)?;
    if argv.first().is_none_or(|program| program.is_empty()) {
        return refuse(field, "it names no program");
    }
    argv.iter().try_for_each(|arg| raw(field, arg))
}

fn user(field: &str, s: &str) -> Result<(), Refusal> {
    let ok = s.len() <= 64 && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c));
    if ok { Ok(()) } else { refuse(field, format!("`{}` is no user", shown(s))) }
}

/// An absolute path in its shortest form, outside of the kernel's folders.
fn path(field: &str, s: &str) -> Result<(), Refusal> {
    let parts = s.strip_prefix('/').unwrap_or_default();
    let ok = s.len() <= 512
        && !parts.is_empty()
        && parts.split('/').all(|p| !p.is_empty() && p != "." && p != "..")
        // Docker's mount syntax gives meaning to colons and commas; nobody needs them here.
        && s.chars().all(|c| is_visible(c) && !":,".contains(c));
    if !ok {
        return refuse(field, format!("`{}` is not an absolute path in its shortest form", shown(s)));
    }
    match KERNEL_FOLDERS.iter().find(|k| is_below(s, k)) {
        Some(kernel) => refuse(field, format!("`{s}` lies in {kernel}")),
        None => Ok(()),
    }
}

/// Whether a person who reads a path sees this character in it.
fn is_visible(c: char) -> bool {
    "'\"\\".contains(c) || c.escape_debug().len() == 1
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn text(field: &str, s: &str, allowed: &[Placeholder], values: &Values<'_>) -> Result<(), Refusal> {
    raw(field, s)?;
    template::fill(s, allowed, values).map(drop).or_else(|e| refuse(field, e.to_string()))
}

fn environment(
    field: &str,
    env: &Pairs,
    allowed: &[Placeholder],
    values: &Values<'_>,
    names: &Names,
) -> Result<(), Refusal> {
    at_most(field, env.len(), 128)?;
    let mut seen = BTreeSet::new();
    for (name, value) in env {
        let ok = name.len() <= 128
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !ok {
            return refuse(field, format!("`{}` is no name of a variable", shown(name)));
        }
        if name.starts_with(&names.reserved_prefix()) {
            return refuse(field, format!("`{name}` starts with {}, which is the host's", names.reserved_prefix()));
        }
        if !seen.insert(name) {
            return refuse(field, format!("`{name}` appears twice"));
        }
        text(&format!("{field} {name}"), value, allowed, values)?;
    }
    Ok(())
}

fn command(field: &str, c: &Command, values: &Values<'_>, names: &Names) -> Result<(), Refusal> {
    argv(field, &c.argv)?;
    c.argv.iter().try_for_each(|arg| text(field, arg, template::IN_ARGV, values))?;
    environment(field, &c.env, template::IN_EXEC_ENVIRONMENT, values, names)?;
    if let Some(u) = &c.user {
        user(field, u)?;
    }
    if !TIMEOUT_MS.contains(&c.timeout_ms) {
        return refuse(field, format!("timeout-ms {} is outside {TIMEOUT_MS:?}", c.timeout_ms));
    }
    match &c.expect {
        Expectation::ExitZero => Ok(()),
        Expectation::StdoutIs(s) => raw(field, s),
        Expectation::StdoutHasLines(lines) => {
            at_most(field, lines.len(), 64)?;
            lines.iter().try_for_each(|l| raw(field, l))
        }
    }
}

fn steps(field: &str, steps: &[Step], request: &Request, values: &Values<'_>, names: &Names) -> Result<(), Refusal> {
    at_most(field, steps.len(), 32)?;
    for step in steps {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " _.-".contains(c);
        if step.name.is_empty() || step.name.len() > 64 || !step.name.chars().all(plain) {
            return refuse(field, format!("`{}` is no name of a step", shown(&step.name)));
        }
        if let Some(feature) = &step.feature
            && !request.features.contains(feature)
        {
            return refuse(field, format!("`{}` is about a feature nobody asked for", step.name));
        }
        command(&format!("{field} `{}`", step.name), &step.run, values, names)?;
    }
    Ok(())
}

/// Variables that change how every program of the agent runs; no engine has a reason to set them.
fn is_loader_variable(name: &str) -> bool {
    name == "PATH" || name.starts_with("LD_") || name.starts_with("DYLD_")
}

fn variables(recipe: &Recipe, grants: &Grants, values: &Values<'_>, names: &Names) -> Result<(), Refusal> {
    at_most("variables", recipe.variables.len(), 32)?;
    let mut seen = BTreeSet::new();
    for variable in &recipe.variables {
        let name = &variable.name;
        let ok = name.len() <= 64
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !ok {
            return refuse("variables", format!("`{}` is no name of a variable", shown(name)));
        }
        if !seen.insert((variable.prefixed, name)) {
            return refuse("variables", format!("`{name}` appears twice"));
        }
        if !variable.prefixed {
            if is_loader_variable(name) || name.starts_with(&names.reserved_prefix()) {
                return refuse("variables", format!("`{name}` is never an engine's to set"));
            }
            if !grants.variables.contains(name) {
                return not_granted("variables", "variables", &grants.variables, name);
            }
        }
        text(&format!("variable {name}"), &variable.value, template::IN_VARIABLE, values)?;
        if variable.value.chars().any(char::is_control) {
            return refuse("variables", format!("`{name}` holds a control character"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DataDir, File, Variable};
    use crate::testing;

    fn names() -> Names {
        testing::names()
    }

    fn refused(change: impl FnOnce(&mut Recipe)) -> String {
        let mut recipe = testing::recipe();
        change(&mut recipe);
        match check(recipe, &testing::request(&[]), &testing::grants(), &names()) {
            Ok(_) => "accepted".to_owned(),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn a_client_is_a_command_whose_words_its_caller_may_know() {
        let mut recipe = testing::recipe();
        recipe.container.account.as_mut().unwrap().admin = true;
        let checked = check(recipe, &testing::request(&[]), &testing::grants(), &names()).unwrap();
        let named = |argv: &str, env: &str| {
            let more = vec![("client".to_owned(), argv.to_owned()), ("client-env".to_owned(), env.to_owned())];
            client(&more, &checked, &names()).map_err(|refusal| refusal.to_string())
        };
        let good = named("ask  -h {address}", "PASS={password} URL=a=b").unwrap().unwrap();
        assert_eq!(good.argv, ["ask", "-h", "{address}"]);
        assert_eq!(good.env, [("PASS", "{password}"), ("URL", "a=b")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(client(&vec![("later".to_owned(), "x".to_owned())], &checked, &names()), Ok(None));
        for (argv, env, why) in [
            ("", "", "names no program"),
            ("ask {password}", "", "{password} may not stand here"),
            ("ask", "PASS={admin_password}", "{admin_password} may not stand here"),
            ("ask", "PASS", "NAME=value"),
            ("ask", "PASS={", "no placeholder"),
            ("ask", &format!("PASS={}", "x".repeat(1_020)), "1025 are more than 1024"),
        ] {
            let said = named(argv, env).unwrap_err();
            assert!(said.contains(why), "{argv} {env}: {said}");
        }
    }

    #[test]
    fn a_sound_recipe_passes() {
        assert_eq!(refused(|_| {}), "accepted");
    }

    #[test]
    fn what_needs_a_grant_names_it() {
        assert_eq!(
            refused(|r| r.container.image = "evil.example/x:1".into()),
            "image: `evil.example/x:1` was not granted; this line would allow it: \
             grant.images = [\"db:*\", \"evil.example/x:1\"]"
        );
        let capabilities = |name: &str| refused(|r| r.container.capabilities = vec![name.into()]);
        assert!(capabilities("SYS_ADMIN").ends_with("it: grant.capabilities = [\"SYS_ADMIN\"]"));
        assert!(capabilities("no such\n").ends_with("`no such\\n` is no capability"));
        let data = refused(|r| r.container.data[0].path = "/other".into());
        assert!(data.ends_with("it: grant.data_dirs = [\"/data\", \"/other\"]"), "{data}");
        let memory = refused(|r| r.container.data[0].tmpfs_bytes = (300 << 20) + 1);
        assert!(memory.ends_with("it: memory = \"601m\""), "{memory}");
        let variable = |name: &str| Variable { name: name.into(), value: "x".into(), prefixed: false };
        let variables = refused(|r| r.variables.push(variable("HOME")));
        assert!(variables.ends_with("it: grant.variables = [\"DATABASE_URL\", \"HOME\"]"), "{variables}");
        for never in ["PATH", "LD_PRELOAD", "SANDBAR_TEST_X"] {
            assert!(refused(|r| r.variables.push(variable(never))).contains("never"), "{never}");
        }
    }

    #[test]
    fn unsound_paths_are_refused() {
        for bad in [
            "/",
            "relative",
            "/a/../b",
            "/a//b",
            "/proc/self",
            "/sys",
            "/dev/shm",
            "/a\0b",
            "/a:b",
            "/a,b",
            "/.",
            "/a\u{202e}",
        ] {
            assert!(refused(|r| r.container.data[0].path = bad.into()).starts_with("data: "), "{bad:?}");
            assert!(refused(|r| r.container.files[0].path = bad.into()).starts_with("files: "), "{bad:?}");
        }
        assert!(refused(|r| r.container.files[0].path = "/data/x".into()).contains("data directory"));
        for system in ["/etc/passwd", "/etc/ld.so.preload", "/etc/sudoers.d/x"] {
            assert!(refused(|r| r.container.files[0].path = system.into()).contains("the image's own"), "{system}");
        }
        assert_eq!(refused(|r| r.container.files[0].path = "/etc/passwd.conf".into()), "accepted");
        assert!(refused(|r| r.container.files[0].mode = 0o4755).contains("more than 777"));
        let twice = |r: &mut Recipe| r.container.data.push(DataDir { path: "/data".into(), tmpfs_bytes: MIN_TMPFS });
        assert!(refused(twice).contains("another data directory"));
    }

    #[test]
    fn secrets_stay_where_nobody_sees_them() {
        assert!(refused(|r| r.ready.argv.push("{password}".into())).contains("{password} may not stand here"));
        assert!(refused(|r| r.container.files[0].content = "{password}".into()).contains("may not stand here"));
        assert!(refused(|r| r.variables[0].value = "{admin_password}".into()).contains("may not stand here"));
        // The recipe has no administrator, so there is nothing to fill in.
        assert!(refused(|r| r.container.env[0].1 = "{admin_password}".into()).contains("no such thing"));
    }

    #[test]
    fn limits_hold() {
        assert!(refused(|r| r.container.data[0].tmpfs_bytes = u64::MAX).contains("more than half"));
        assert!(refused(|r| r.container.data[0].tmpfs_bytes = 0).contains("less than"));
        assert!(refused(|r| r.container.shm_bytes = u64::MAX).contains("more than an eighth"));
        assert!(refused(|r| r.deadline_ms = 0).contains("outside"));
        assert!(refused(|r| r.deadline_ms = u32::MAX).contains("outside"));
        assert!(refused(|r| r.ready.timeout_ms = 0).contains("outside"));
        assert!(refused(|r| r.container.port = Some(0)).contains("no port"));
        let file = File { path: "/f".into(), mode: 0, content: "x".repeat(300 << 10) };
        assert!(refused(|r| r.container.files.push(file)).contains("256 KiB"));
        assert!(refused(|r| r.container.more.push(("k".into(), "v".into()))).contains("no key `k`"));
        assert!(refused(|r| r.ready.argv = vec![]).contains("no program"));
        assert!(refused(|r| r.ready.argv.push("a\0".into())).contains("NUL"));
        assert!(refused(|r| r.container.env.push(("A=B".into(), String::new()))).contains("no name of a variable"));
        assert!(refused(|r| r.container.env.push(("SANDBAR_SECRET_X".into(), String::new()))).contains("the host's"));
    }

    #[test]
    fn a_refusal_is_one_short_line() {
        for text in ["\u{1b}[31m\n\0\u{202e}".to_owned(), "X".repeat(1 << 20)] {
            let changes: [fn(&mut Recipe) -> &mut String; 7] = [
                |r| &mut r.container.image,
                |r| &mut r.container.user,
                |r| &mut r.container.data[0].path,
                |r| &mut r.container.env[0].0,
                |r| &mut r.variables[0].name,
                |r| {
                    r.container.capabilities.push(String::new());
                    &mut r.container.capabilities[0]
                },
                |r| {
                    r.container.more.push((String::new(), String::new()));
                    &mut r.container.more[0].0
                },
            ];
            for change in changes {
                let said = refused(|r| change(r).push_str(&text));
                assert!(said != "accepted" && said.chars().count() < 400, "{said}");
                assert!(said.chars().all(is_visible), "{said:?}");
            }
        }
        let braces = refused(|r| r.container.env[0].1 = "{\n\u{1b}".into());
        assert!(braces.contains("no placeholder") && braces.chars().all(is_visible), "{braces:?}");
    }

    #[test]
    fn every_feature_must_be_confirmed() {
        let refusal = check(testing::recipe(), &testing::request(&["vector"]), &testing::grants(), &names());
        assert!(refusal.unwrap_err().to_string().contains("no step confirms the feature `vector`"));
    }
}
