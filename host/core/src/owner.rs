//! Whose a container is, and how that is written outside of this process. What is throwaway and no box is named by its
//! agent's slug, which agents connect to. Boxes and everything retained are named by an owner key alone, from which nobody
//! learns a project or an agent, and which no tenant can forge.

use std::fmt;
use std::sync::Arc;

use crate::name::{AgentName, EngineSlug, Names, ProjectName, ServiceName};
use crate::plan::label;
use crate::runtime::Labels;
use crate::secret::{random_hex, sha256_hex};

/// The owner of a box and of anything retained.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant {
    /// The project.
    pub project: ProjectName,
    /// The agent.
    pub agent: AgentName,
    /// Tells it from earlier agents of the same slug; absent for agents of the configuration.
    pub incarnation: Option<u64>,
}

/// `<namespace>-` and 64 hex digits; matches `[A-Za-z0-9_-]{1,128}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerKey(Arc<str>);

/// What a key is a hash of begins with this, so that another way of making keys can never make the same ones.
const DOMAIN: &[u8] = b"sandbar owner key 1";
/// How many of a key's hex digits stand in names, which must be DNS labels: 128 bits.
const IN_NAMES: usize = 32;
/// How many stand in logs.
const IN_LOGS: usize = 12;

impl OwnerKey {
    /// The key of a tenant. Each part is marked present or absent and preceded by its length, so that no two tenants have
    /// the same bytes.
    pub fn new(names: &Names, tenant: &Tenant) -> Self {
        let incarnation = tenant.incarnation.map(|n| n.to_string());
        let parts = [
            Some(names.installation()),
            Some(tenant.project.as_str()),
            Some(tenant.agent.as_str()),
            incarnation.as_deref(),
        ];
        Self(format!("{}-{}", names.namespace(), digest(&parts)).into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn digits(&self, n: usize) -> &str {
        let digits = self.0.rsplit('-').next().unwrap_or_default();
        digits.get(..n).unwrap_or(digits)
    }
}

fn digest(parts: &[Option<&str>]) -> String {
    let mut bytes = DOMAIN.to_vec();
    for part in parts {
        bytes.push(u8::from(part.is_some()));
        let part = part.unwrap_or_default();
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    sha256_hex(bytes)
}

/// One service of a tenant that is named by the owner key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keyed {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its key.
    pub key: OwnerKey,
    /// The service.
    pub service: ServiceName,
    /// Whether it is retained: letting go of it only puts it to sleep.
    pub retained: bool,
}

/// Whose a container is. The order keeps everything of an agent together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The agent.
    pub agent: AgentName,
    /// The service, where it stands alone; with none it is everything else that the agent has.
    pub keyed: Option<Keyed>,
}

impl Owner {
    /// Of what is throwaway and no box.
    pub fn agent(agent: &AgentName) -> Self {
        Self { agent: agent.clone(), keyed: None }
    }

    /// Of one service of a tenant.
    pub fn keyed(names: &Names, tenant: &Tenant, service: &ServiceName, retained: bool) -> Self {
        let keyed =
            Keyed { tenant: tenant.clone(), key: OwnerKey::new(names, tenant), service: service.clone(), retained };
        Self { agent: tenant.agent.clone(), keyed: Some(keyed) }
    }

    /// The name of a work folder: what is retained has one, what is throwaway a fresh one each time.
    pub fn folder(&self) -> String {
        match &self.keyed {
            Some(Keyed { key, service, retained: true, .. }) => kept_folder(key.as_str(), service.as_str()),
            _ => format!("{self}-{}", random_hex(8)),
        }
    }

    /// For logs: the agent, where it is named by that.
    pub fn slug(&self) -> Option<&str> {
        self.keyed.is_none().then(|| self.agent.as_str())
    }

    /// For logs: a prefix of the key, where it is named by that.
    pub fn key(&self) -> Option<&str> {
        self.keyed.as_ref().map(|keyed| keyed.key.digits(IN_LOGS))
    }

    /// Whether letting go only puts to sleep.
    pub fn retains(&self) -> bool {
        self.keyed.as_ref().is_some_and(|k| k.retained)
    }

    /// The final name of a container.
    pub fn container(&self, names: &Names, slug: &EngineSlug) -> String {
        match &self.keyed {
            None => names.sandbox(slug, &self.agent),
            Some(keyed) => names.keyed(keyed.retained, slug, keyed.key.digits(IN_NAMES)),
        }
    }

    /// The value of the owner label.
    pub fn label(&self, names: &Names) -> String {
        match &self.keyed {
            None => names.owner(&self.agent),
            Some(keyed) => keyed.key.as_str().to_owned(),
        }
    }

    /// Labels by which everything of this owner is found, volumes too.
    pub fn labels(&self, names: &Names) -> Labels {
        let mut labels = names.base_labels();
        labels.insert(names.label(label::OWNER), self.label(names));
        if let Some(keyed) = &self.keyed {
            labels.insert(names.label(label::SERVICE), keyed.service.to_string());
        }
        labels
    }
}

/// Whom a container is made for.
#[derive(Debug, Clone, Copy)]
pub enum For<'a> {
    /// Somebody.
    Owner(&'a Owner),
    /// Whoever asks next for just that, which is told by this digest.
    Pool(&'a str),
}

impl For<'_> {
    /// Whether its data outlives it.
    pub fn retains(self) -> bool {
        matches!(self, Self::Owner(owner) if owner.retains())
    }

    /// The name that it gets when it is whole.
    pub fn container(self, names: &Names, slug: &EngineSlug) -> String {
        match self {
            Self::Owner(owner) => owner.container(names, slug),
            Self::Pool(_) => names.pooled(),
        }
    }

    /// See [`Owner::labels`].
    pub fn labels(self, names: &Names) -> Labels {
        match self {
            Self::Owner(owner) => owner.labels(names),
            Self::Pool(shape) => {
                let mut labels = names.base_labels();
                labels.insert(names.label(label::OWNER), names.pool());
                labels.insert(names.label(label::SHAPE), shape.to_owned());
                labels
            }
        }
    }
}

/// The work folder that goes when a container with these labels goes. What is retained keeps its folder, whatever becomes of
/// its containers.
pub fn folder_that_goes<'a>(labels: &'a Labels, names: &Names) -> Option<&'a str> {
    let text = |key| labels.get(&names.label(key)).map(String::as_str);
    let folder = text(label::FOLDER)?;
    let kept = kept_folder(text(label::OWNER)?, text(label::SERVICE)?);
    (folder != kept).then_some(folder)
}

fn kept_folder(key: &str, service: &str) -> String {
    format!("{key}-{service}")
}

/// For logs: an agent, or a prefix of a key.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.keyed {
            None => f.write_str(self.agent.as_str()),
            Some(keyed) => f.write_str(keyed.key.digits(IN_LOGS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    fn tenant(project: &str, agent: &str, incarnation: Option<u64>) -> Tenant {
        let (project, agent) = (ProjectName::new(project).unwrap(), AgentName::new(agent).unwrap());
        Tenant { project, agent, incarnation }
    }

    #[test]
    fn a_key_says_nothing_and_fits_where_it_stands() {
        let names = testing::names();
        let tenant = tenant("shop", "dev-1", Some(7));
        let key = OwnerKey::new(&names, &tenant);
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        assert!(key.as_str().len() <= 128 && key.as_str().chars().all(plain));
        assert!(!key.as_str().contains("shop") && !key.as_str().contains("dev-1"));
        let service = ServiceName::new("box").unwrap();
        let slug = EngineSlug::new("12345678").unwrap();
        for retained in [false, true] {
            let owner = Owner::keyed(&names, &tenant, &service, retained);
            assert!(owner.folder().len() <= 128 && owner.folder().chars().all(plain));
            let name = owner.container(&names, &slug);
            assert!(name.len() <= 63, "{name}");
            assert!(!owner.to_string().contains("dev") && key.as_str().contains(&owner.to_string()));
        }
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        let all: Vec<&[Option<&str>]> = vec![
            &[Some("a"), Some("bc")],
            &[Some("ab"), Some("c")],
            &[Some("abc"), Some("")],
            &[Some("abc"), None],
            &[None, Some("abc")],
            &[Some(""), Some("abc")],
            &[Some("abc")],
            &[Some("a\0bc"), None],
            // Latin and Cyrillic.
            &[Some("a"), Some("\u{430}c")],
        ];
        let digests: std::collections::BTreeSet<_> = all.iter().map(|parts| digest(parts)).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn tenants_differ_by_every_part() {
        let names = testing::names();
        let all = [
            tenant("shop", "a", None),
            tenant("shop", "a", Some(0)),
            tenant("shop", "a", Some(1)),
            tenant("shop", "b", None),
            tenant("shop-a", "a", None),
            tenant("shop", "a-a", None),
        ];
        let keys: std::collections::BTreeSet<_> = all.iter().map(|t| OwnerKey::new(&names, t)).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(OwnerKey::new(&names, &all[0]), OwnerKey::new(&names, &all[0]));
    }

    /// Parts as somebody would choose them who wants another one's key: absent and empty, separators, what the encoding
    /// itself is made of, and letters that look alike.
    fn parts() -> impl Strategy<Value = Vec<Option<String>>> {
        let symbols = [
            "", "a", "b", "-", "--", "/", ":", ".", "\0", "\u{1}", "\u{8}", "0", "1", "\u{430}", "\u{e9}", "e\u{301}",
            " ",
        ];
        let text = vec(prop::sample::select(symbols.to_vec()), 0..4).prop_map(|symbols| symbols.concat());
        vec(prop::option::of(text), 0..5)
    }

    /// The same characters, cut at other places.
    fn cut_anew(parts: &[Option<String>], cuts: &[usize]) -> Vec<Option<String>> {
        let all: Vec<char> = parts.iter().flatten().flat_map(|part| part.chars()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (all.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(all.len());
        let mut begin = 0;
        cuts.into_iter().map(|cut| Some(all[std::mem::replace(&mut begin, cut)..cut].iter().collect())).collect()
    }

    fn key_of(parts: &[Option<String>]) -> String {
        digest(&parts.iter().map(Option::as_deref).collect::<Vec<_>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn keys_are_equal_where_all_parts_are(one in parts(), other in parts(), cuts in vec(any::<usize>(), 0..4)) {
            prop_assert_eq!(one == other, key_of(&one) == key_of(&other));
            let forged = cut_anew(&one, &cuts);
            prop_assert_eq!(one == forged, key_of(&one) == key_of(&forged));
        }

        #[test]
        fn what_looks_like_a_name_is_one_or_is_refused(text in prop::string::string_regex("[a-c\u{430}\u{e9}-]{0,4}|.{0,40}").unwrap()) {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let plain = (1..=32).contains(&text.len()) && text.chars().all(fits) && !text.starts_with('-') && !text.ends_with('-');
            prop_assert_eq!(AgentName::new(&text).is_ok(), plain);
        }
    }
}
