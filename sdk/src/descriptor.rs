//! Constructors for what an engine says of itself, and questions to a request. It checks nothing: the host does, and
//! [`crate::testing`] in an author's tests.

use std::str::FromStr;

use crate::{Descriptor, Error, Feature, Request, Setting};

impl Descriptor {
    /// An engine without features and settings. `version` is usually `env!("CARGO_PKG_VERSION")`.
    pub fn new(
        name: impl Into<String>,
        slug: impl Into<String>,
        version: impl Into<String>,
        summary: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            slug: slug.into(),
            version: version.into(),
            summary: summary.into(),
            features: Vec::new(),
            settings: Vec::new(),
            more: Vec::new(),
        }
    }

    /// Adds a feature that the engine can activate.
    #[must_use]
    pub fn feature(mut self, name: impl Into<String>, summary: impl Into<String>) -> Self {
        self.features.push(Feature { name: name.into(), summary: summary.into() });
        self
    }

    /// Adds something that an operator may set.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, default: impl Into<String>, summary: impl Into<String>) -> Self {
        self.settings.push(Setting { name: name.into(), default: default.into(), summary: summary.into() });
        self
    }

    /// Names the service's own client for a person, with what logs it in as the agent's account: a program of the image with
    /// its arguments, and variables. No word may hold a space. Never put a secret into the arguments.
    #[must_use]
    pub fn client<'a>(
        mut self,
        argv: impl IntoIterator<Item = &'a str>,
        env: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let argv: Vec<_> = argv.into_iter().collect();
        self.more.push(("client".to_owned(), argv.join(" ")));
        let env: Vec<_> = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        self.more.push(("client-env".to_owned(), env.join(" ")));
        self
    }
}

impl Request {
    /// The value of a setting.
    ///
    /// # Errors
    ///
    /// [`Error::Other`] if the descriptor does not name it: the host sends every setting that it does.
    pub fn setting(&self, name: &str) -> Result<&str, Error> {
        let found = self.settings.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).ok_or_else(|| Error::Other(format!("there is no setting `{name}`")))
    }

    /// The value of a setting as a number, a truth value, or whatever else can be read from text.
    ///
    /// # Errors
    ///
    /// [`Error::BadSetting`] if it cannot be read, and [`Error::Other`] if the descriptor does not name it.
    pub fn setting_as<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<T, Error> {
        let value = self.setting(name)?;
        value.parse().map_err(|why: T::Err| Error::BadSetting((name.to_owned(), why.to_string())))
    }

    /// Whether a feature is wanted.
    #[must_use]
    pub fn wants(&self, feature: &str) -> bool {
        self.features.iter().any(|wanted| wanted == feature)
    }

    /// Whether the service without features will do. Never so where the data outlives the container: every container
    /// that opens it needs the same image.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.features.is_empty() && !self.retained
    }

    /// One part in so many of the container's memory, in bytes: `memory_share(2)` is half of it.
    #[must_use]
    pub fn memory_share(&self, parts: u64) -> u64 {
        self.memory_bytes / parts.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let settings = vec![("image".to_owned(), "x:1".to_owned()), ("limit".to_owned(), "many".to_owned())];
        Request { features: vec!["a".to_owned()], retained: false, superuser: false, memory_bytes: 100, settings }
    }

    #[test]
    fn settings_are_found_and_read() {
        assert_eq!(request().setting("image"), Ok("x:1"));
        assert_eq!(request().setting("none"), Err(Error::Other("there is no setting `none`".to_owned())));
        let why = "invalid digit found in string".to_owned();
        assert_eq!(request().setting_as::<u32>("limit"), Err(Error::BadSetting(("limit".to_owned(), why))));
    }

    #[test]
    fn a_client_is_two_keys_for_hosts_that_know_them() {
        let named =
            Descriptor::new("a", "a", "1", "A").client(["ask", "-h", "{address}"], [("PASS", "{password}"), ("B", "")]);
        let keys = [("client", "ask -h {address}"), ("client-env", "PASS={password} B=")];
        assert_eq!(named.more, keys.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn bare_means_no_features_and_nothing_kept() {
        let bare = Request { features: Vec::new(), ..request() };
        assert!(bare.is_bare() && !request().is_bare());
        assert!(!Request { retained: true, ..bare }.is_bare());
        assert!(request().wants("a") && !request().wants("b"));
        assert_eq!((request().memory_share(8), request().memory_share(0)), (12, 100));
    }
}
