//! Which `Host` headers are answered. A page in somebody's browser can make requests to a loopback address under a name
//! of its own (DNS rebinding); such a name is not in this list.

use std::net::SocketAddr;

/// The names and addresses under which this server may be called.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts(Vec<String>);

/// Whether this can be the name of a host in a `Host` header: a name or an address, in brackets where it has colons, and
/// perhaps a port.
///
/// # Errors
/// What it is instead, in one line.
pub fn check_host(text: &str) -> Result<(), String> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let v6 = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let name_fits = match v6 {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)),
    };
    if name_fits && port.is_none_or(|p| p.parse::<u16>().is_ok()) {
        return Ok(());
    }
    let shown = sandbar_core::error::shown(text);
    Err(format!("`{shown}` is not what a `Host` header holds: a name such as \"sandbar.internal\", or an address"))
}

impl AllowedHosts {
    /// Loopback, the addresses listened on, and what the operator adds. The port is not compared.
    pub fn new(listen: &[SocketAddr], more: &[String]) -> Self {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into();
        hosts.extend(listen.iter().filter(|a| !a.ip().is_unspecified()).map(|a| match a {
            SocketAddr::V4(a) => a.ip().to_string(),
            SocketAddr::V6(a) => format!("[{}]", a.ip()),
        }));
        hosts.extend(more.iter().map(|h| h.to_ascii_lowercase()));
        Self(hosts)
    }

    /// Whether a `Host` header names one of them.
    pub fn allows(&self, header: &str) -> bool {
        let name = match header.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => header,
        };
        self.0.iter().any(|h| h.eq_ignore_ascii_case(name) || h.eq_ignore_ascii_case(header))
    }

    /// Whether an `Origin` header names one of them: a page of this server, or of a program on this machine.
    pub fn allows_origin(&self, header: &str) -> bool {
        let host = header.strip_prefix("http://").or_else(|| header.strip_prefix("https://"));
        host.is_some_and(|host| self.allows(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_header_holds_is_not_allowed() {
        for good in ["sandbar.internal", "host-1:7070", "10.0.0.1", "[fe80::1]", "[::1]:80", "my_host"] {
            assert_eq!(check_host(good), Ok(()), "{good}");
        }
        for bad in ["", "http://x/", "x/", "*", "*.x", "a b", "fe80::1", "x:", "x:99999", "[x]", ":80"] {
            assert!(check_host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn foreign_names_are_refused() {
        let listen = ["10.1.2.3:7070".parse().unwrap(), "0.0.0.0:1".parse().unwrap()];
        let hosts = AllowedHosts::new(&listen, &["Sandbar.internal".to_owned()]);
        for good in ["localhost", "localhost:7070", "127.0.0.1:1", "[::1]:7070", "10.1.2.3:7070", "sandbar.internal:80"]
        {
            assert!(hosts.allows(good), "{good}");
        }
        for bad in ["evil.example", "evil.example:7070", "localhost.evil.example", "0.0.0.0:1", "", "127.0.0.1.nip.io"]
        {
            assert!(!hosts.allows(bad), "{bad}");
            assert!(!hosts.allows_origin(&format!("http://{bad}")), "{bad}");
        }
        assert!(hosts.allows_origin("http://localhost:3000") && hosts.allows_origin("https://sandbar.internal"));
        for bad in ["null", "", "localhost", "file://localhost", "http://localhost/x", "http://u@localhost"] {
            assert!(!hosts.allows_origin(bad), "{bad}");
        }
    }
}
