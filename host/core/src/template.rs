//! Templates: text of an engine with placeholders that the host fills in. Which placeholders a field may hold is
//! checked when the engine is loaded; filling in cannot fail for a template that was checked.

use std::fmt;

use crate::error::shown;

/// What can be filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placeholder {
    /// The account's user.
    User,
    /// The agent's password.
    Password,
    /// The administrator's password.
    AdminPassword,
    /// The account's database.
    Database,
    /// What the agent connects to.
    Host,
    /// The port: the container's own inside it, the one to connect to in what the agent gets.
    Port,
    /// The container's own address.
    Address,
    /// The host's namespace.
    Namespace,
}

use Placeholder::*;

const ALL: [(Placeholder, &str); 8] = [
    (User, "user"),
    (Password, "password"),
    (AdminPassword, "admin_password"),
    (Database, "database"),
    (Host, "host"),
    (Port, "port"),
    (Address, "address"),
    (Namespace, "namespace"),
];

/// In an image reference.
pub const IN_IMAGE: &[Placeholder] = &[Namespace];
/// In a container's environment: it is made before it has an address.
pub const IN_ENVIRONMENT: &[Placeholder] = &[User, Password, AdminPassword, Database, Port, Namespace];
/// In a file: never a secret, since a file can be copied out.
pub const IN_FILE: &[Placeholder] = &[User, Database, Port, Namespace];
/// In an argument list: never a secret, since `ps` shows it.
pub const IN_ARGV: &[Placeholder] = &[Address, Port, User, Database];
/// In the environment of a command.
pub const IN_EXEC_ENVIRONMENT: &[Placeholder] = &[User, Password, AdminPassword, Database, Port, Address, Namespace];
/// In the environment of a client: what its caller is told.
pub const IN_CLIENT_ENVIRONMENT: &[Placeholder] = &[User, Password, Database, Port, Address, Namespace];
/// In what the agent gets: never the administrator's password.
pub const IN_VARIABLE: &[Placeholder] = &[User, Password, Database, Host, Port, Namespace];

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ALL.iter().find(|(p, _)| p == self).map_or("?", |(_, n)| n);
        write!(f, "{{{name}}}")
    }
}

/// Why a text is not a template for its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A single brace, or a name that is no placeholder.
    #[error("`{}` is no placeholder; write a literal brace twice", shown(.0))]
    Unknown(String),
    /// A placeholder that this field may not hold.
    #[error("{0} may not stand here")]
    NotAllowed(Placeholder),
    /// A placeholder for something this recipe does not have.
    #[error("{0} stands here, but the recipe has no such thing")]
    Absent(Placeholder),
}

/// The values to fill in. `None` where the recipe has no such thing, or where it is not known yet.
#[derive(Clone, Default)]
pub struct Values<'a> {
    /// For `{user}`.
    pub user: Option<&'a str>,
    /// For `{password}`.
    pub password: Option<&'a str>,
    /// For `{admin_password}`.
    pub admin_password: Option<&'a str>,
    /// For `{database}`.
    pub database: Option<&'a str>,
    /// For `{host}`.
    pub host: Option<&'a str>,
    /// For `{port}`.
    pub port: Option<&'a str>,
    /// For `{address}`.
    pub address: Option<&'a str>,
    /// For `{namespace}`.
    pub namespace: Option<&'a str>,
}

impl<'a> Values<'a> {
    fn get(&self, p: Placeholder) -> Option<&'a str> {
        match p {
            User => self.user,
            Password => self.password,
            AdminPassword => self.admin_password,
            Database => self.database,
            Host => self.host,
            Port => self.port,
            Address => self.address,
            Namespace => self.namespace,
        }
    }
}

/// Fills a template in, if it holds only `allowed` placeholders that have a value.
///
/// # Errors
/// See [`TemplateError`].
pub fn fill(text: &str, allowed: &[Placeholder], values: &Values<'_>) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{{") {
            out.push('{');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("}}") {
            out.push('}');
            rest = after;
        } else {
            let unknown = || TemplateError::Unknown(rest.chars().take(24).collect());
            let (name, after) = rest.strip_prefix('{').and_then(|r| r.split_once('}')).ok_or_else(unknown)?;
            let placeholder = ALL.iter().find(|(_, n)| *n == name).map(|(p, _)| *p).ok_or_else(unknown)?;
            if !allowed.contains(&placeholder) {
                return Err(TemplateError::NotAllowed(placeholder));
            }
            out.push_str(values.get(placeholder).ok_or(TemplateError::Absent(placeholder))?);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether a value may be filled in: it needs no escaping in SQL, JSON, a URL or a shell word.
pub fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_and_refuses() {
        let values = Values { user: Some("u"), password: Some("p"), ..Values::default() };
        assert_eq!(fill("a {user} {{x}} {password}}}", &[User, Password], &values).unwrap(), "a u {x} p}");
        assert_eq!(fill("{password}", IN_ARGV, &values), Err(TemplateError::NotAllowed(Password)));
        assert_eq!(fill("{database}", IN_ARGV, &values), Err(TemplateError::Absent(Database)));
        for bad in ["{", "}", "{nope}", "{user", "{ user }", "a}b", "{}"] {
            assert!(matches!(fill(bad, IN_ARGV, &values), Err(TemplateError::Unknown(_))), "{bad}");
        }
    }

    #[test]
    fn no_field_that_can_be_seen_holds_a_secret() {
        for field in [IN_IMAGE, IN_FILE, IN_ARGV] {
            assert!(!field.contains(&Password) && !field.contains(&AdminPassword));
        }
        assert!(!IN_VARIABLE.contains(&AdminPassword));
    }

    #[test]
    fn plain_values() {
        for good in ["sandbox", "172.17.0.2", "a_b-c.d"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "a b", "a'b", "a/b", "fd00::2", "$x", "a\n"] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
