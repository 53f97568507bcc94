//! Which versions of the contract this host speaks, and how the one an engine was built for is found among its exports.
//!
//! The rule: the major version is the host's, the minor version is not newer than the host's. Within a major version
//! records are frozen, so an older engine works; a newer one may count on words that this host does not know, and is
//! better told so than half understood.

use semver::Version;

use crate::error::LoadReason;
use crate::explain::one_line;

/// The interface that an engine exports, without its version.
pub const CONTRACT_INTERFACE: &str = "sandbar:engine/engine";

/// The version of the contract for which this host was built.
pub const CONTRACT_VERSION: &str = "1.0.0";

/// The version among `exported` that name lookup will find, if the host speaks it. `exported` holds every version under
/// which the component exports [`CONTRACT_INTERFACE`]; an export without a version is an empty string.
///
/// Lookup takes the host's exact version where it is exported, and otherwise the highest release with the same major
/// version, whatever its minor version: so that one must be judged, not just any.
pub(crate) fn spoken(exported: &[String]) -> Result<Version, LoadReason> {
    if exported.is_empty() {
        return Err(LoadReason::NoContract { spoken: spoken_text() });
    }
    let host = host_version();
    let releases: Vec<Version> = exported
        .iter()
        .filter_map(|text| Version::parse(text).ok())
        .filter(|version| version.pre.is_empty() && version.major == host.major)
        .collect();
    let found = if releases.contains(&host) {
        Some(host.clone())
    } else {
        releases.into_iter().max_by(Version::cmp_precedence)
    };
    found
        .filter(|version| version.minor <= host.minor)
        .ok_or_else(|| LoadReason::WrongContract { exported: exported_text(exported), spoken: spoken_text() })
}

/// [`CONTRACT_VERSION`], parsed.
fn host_version() -> Version {
    Version::parse(CONTRACT_VERSION).expect("the constant is a version")
}

/// The versions that this host speaks, for an error.
fn spoken_text() -> String {
    let host = host_version();
    match host.minor {
        0 => format!("{}.0", host.major),
        minor => format!("{0}.0 to {0}.{minor}", host.major),
    }
}

/// The versions that a component exports, for an error.
fn exported_text(exported: &[String]) -> String {
    let named: Vec<&str> = exported.iter().map(|text| if text.is_empty() { "none" } else { text.as_str() }).collect();
    one_line(&named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(exported: &[&str]) -> Option<String> {
        let exported: Vec<String> = exported.iter().map(ToString::to_string).collect();
        spoken(&exported).ok().map(|version| version.to_string())
    }

    #[test]
    fn a_version_is_spoken_when_no_newer_than_the_host_within_its_major_version() {
        assert_eq!(found(&["1.0.0"]).as_deref(), Some("1.0.0"));
        assert_eq!(found(&["1.0.7"]).as_deref(), Some("1.0.7"));
        for stranger in ["1.1.0", "0.9.0", "2.0.0", "1.0.0-rc.1", "1", "", "one"] {
            assert_eq!(found(&[stranger]), None, "{stranger}");
        }
    }

    #[test]
    fn the_version_judged_is_the_one_that_lookup_finds() {
        assert_eq!(found(&["2.0.0", "1.0.0"]).as_deref(), Some("1.0.0"));
        assert_eq!(found(&["1.0.0", "1.1.0"]).as_deref(), Some("1.0.0"), "the exact version comes first");
        assert_eq!(found(&["1.0.2", "1.1.0"]), None, "lookup would take 1.1.0");
    }

    #[test]
    fn the_constants_are_those_of_the_contract() {
        let wit = include_str!("../../../wit/sandbox-engine.wit");
        let package = CONTRACT_INTERFACE.split('/').next().expect("has a package");
        assert!(wit.contains(&format!("package {package}@{CONTRACT_VERSION};")));
    }
}
