//! From what Docker lists and inspects to the core's units. Pure functions over bollard's types.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, ContainerSummary, ContainerSummaryStateEnum,
    EndpointSettings, PortMap,
};
use sandbar_core::runtime::{Labels, Unit, UnitState};

/// The address of this machine at which ports are published.
pub(crate) const LOOPBACK: &str = "127.0.0.1";

/// A unit from an entry of a listing; `None` where it has no id.
pub(crate) fn listed(container: ContainerSummary, network: &str) -> Option<Unit> {
    let state = listed_state(container.state);
    let published = container.ports.unwrap_or_default().into_iter();
    let published =
        published.filter(|port| port.ip.as_deref() == Some(LOOPBACK)).filter_map(|port| port.public_port).min();
    // A linked container also has names with a second slash, below its links.
    let names = container.names.unwrap_or_default();
    let name =
        names.iter().map(|name| plain_name(name)).find(|name| !name.contains('/')).unwrap_or_default().to_owned();
    let networks = container.network_settings.and_then(|settings| settings.networks);
    Some(Unit {
        id: container.id?,
        name,
        addresses: addresses(networks.as_ref(), state),
        address: address(networks, network, state),
        published_port: published,
        labels: labels(container.labels),
        state,
        image: container.image,
        created: u64::try_from(container.created.unwrap_or_default()).map_or(UNIX_EPOCH, from_seconds),
        run: None,
    })
}

/// A unit from an inspection; `None` where it has no id.
pub(crate) fn inspected(container: ContainerInspectResponse, network: &str) -> Option<Unit> {
    let state = inspected_state(container.state.as_ref());
    let run = container.state.as_ref().and_then(|state| state.started_at.clone());
    let (ports, networks) = container.network_settings.map(|s| (s.ports, s.networks)).unwrap_or_default();
    Some(Unit {
        id: container.id?,
        name: plain_name(container.name.as_deref().unwrap_or_default()).to_owned(),
        addresses: addresses(networks.as_ref(), state),
        address: address(networks, network, state),
        published_port: published(ports),
        labels: labels(container.config.and_then(|config| config.labels)),
        state,
        image: None,
        created: container.created.as_deref().and_then(instant).unwrap_or(UNIX_EPOCH),
        run,
    })
}

/// Docker writes names with a slash before them.
pub(crate) fn plain_name(name: &str) -> &str {
    name.strip_prefix('/').unwrap_or(name)
}

fn labels(labels: Option<HashMap<String, String>>) -> Labels {
    labels.unwrap_or_default().into_iter().collect()
}

fn listed_state(state: Option<ContainerSummaryStateEnum>) -> UnitState {
    match state {
        Some(ContainerSummaryStateEnum::RUNNING) => UnitState::Running,
        Some(ContainerSummaryStateEnum::PAUSED) => UnitState::Paused,
        Some(ContainerSummaryStateEnum::CREATED | ContainerSummaryStateEnum::RESTARTING) => UnitState::Starting,
        _ => UnitState::Ended,
    }
}

/// What a container is doing, from an inspection.
pub(crate) fn inspected_state(state: Option<&ContainerState>) -> UnitState {
    let Some(state) = state else { return UnitState::Ended };
    let is = |flag: Option<bool>| flag == Some(true);
    match state.status {
        Some(
            ContainerStateStatusEnum::REMOVING | ContainerStateStatusEnum::DEAD | ContainerStateStatusEnum::STOPPING,
        ) => UnitState::Ended,
        Some(ContainerStateStatusEnum::CREATED) => UnitState::Starting,
        // `Running` is also true for a container that is paused or between two starts, so these come first.
        _ if is(state.paused) => UnitState::Paused,
        _ if is(state.restarting) => UnitState::Starting,
        _ if is(state.running) => UnitState::Running,
        _ => UnitState::Ended,
    }
}

/// The addresses in every network, which is none for what has ended.
fn addresses(networks: Option<&HashMap<String, EndpointSettings>>, state: UnitState) -> Vec<IpAddr> {
    if !matches!(state, UnitState::Running | UnitState::Paused) {
        return Vec::new();
    }
    let all = networks.into_iter().flat_map(HashMap::values);
    let mut all: Vec<_> = all
        .flat_map(|endpoint| [&endpoint.ip_address, &endpoint.global_ipv6_address])
        .filter_map(|address| address.as_ref()?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}

fn address(networks: Option<HashMap<String, EndpointSettings>>, network: &str, state: UnitState) -> Option<String> {
    // What has ended may still show the address it had, which can be another's by now.
    if !matches!(state, UnitState::Running | UnitState::Paused) {
        return None;
    }
    let endpoint = networks?.remove(network)?;
    let known = |address: Option<String>| address.filter(|address| !address.is_empty());
    known(endpoint.ip_address).or_else(|| known(endpoint.global_ipv6_address))
}

fn published(ports: Option<PortMap>) -> Option<u16> {
    let bindings = ports?.into_values().flatten().flatten();
    bindings
        .filter(|binding| binding.host_ip.as_deref() == Some(LOOPBACK))
        .filter_map(|binding| binding.host_port?.parse().ok())
        .filter(|port| *port != 0)
        .min()
}

fn from_seconds(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

/// A time of RFC 3339, in whole seconds as listings have it, so that a unit is equal however it was looked up. Docker
/// writes UTC; Podman writes the offset of its machine, which humantime does not read.
fn instant(text: &str) -> Option<SystemTime> {
    let (seconds, rest) = text.split_at_checked("2006-01-02T15:04:05".len())?;
    let utc = humantime::parse_rfc3339(&format!("{seconds}Z")).ok()?;
    let offset = rest.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    if offset.eq_ignore_ascii_case("z") {
        return Some(utc);
    }
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let behind = Duration::from_secs(hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60);
    match offset.as_bytes().first()? {
        b'+' => utc.checked_sub(behind),
        b'-' => utc.checked_add(behind),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Unit {
        let Ok(container) = serde_json::from_str(text) else { panic!("that is a listing") };
        let Some(unit) = listed(container, "net") else { panic!("it has an id") };
        unit
    }

    fn inspect(text: &str) -> Unit {
        let Ok(container) = serde_json::from_str(text) else { panic!("that is an inspection") };
        let Some(unit) = inspected(container, "net") else { panic!("it has an id") };
        unit
    }

    #[test]
    fn a_listing_and_an_inspection_give_the_same_unit() {
        let from_list = list(
            r#"{"Id": "1f", "Names": ["/other/alias", "/a"], "Created": 1767323045, "State": "running", "Labels": {"k": "v"},
                "Ports": [{"IP": "0.0.0.0", "PrivatePort": 1, "PublicPort": 5, "Type": "tcp"},
                          {"IP": "127.0.0.1", "PrivatePort": 6379, "PublicPort": 40001, "Type": "tcp"},
                          {"PrivatePort": 7, "Type": "tcp"}],
                "NetworkSettings": {"Networks": {"net": {"IPAddress": "172.18.0.2"}, "more":
                    {"IPAddress": "10.0.0.1", "GlobalIPv6Address": "fd00::2"}}}}"#,
        );
        let from_inspect = inspect(
            r#"{"Id": "1f", "Name": "/a", "Created": "2026-01-02T03:04:05.678901234Z",
                "State": {"Status": "running", "Running": true}, "Config": {"Labels": {"k": "v"}},
                "NetworkSettings": {"Ports": {"6379/tcp": [{"HostIp": "127.0.0.1", "HostPort": "40001"}], "7/tcp": null},
                    "Networks": {"net": {"IPAddress": "172.18.0.2"},
                        "more": {"IPAddress": "10.0.0.1", "GlobalIPv6Address": "fd00::2"}}}}"#,
        );
        assert_eq!(from_list, from_inspect);
        assert_eq!(
            from_list.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.1", "172.18.0.2", "fd00::2"]
        );
        assert_eq!(from_list.address.as_deref(), Some("172.18.0.2"));
        assert_eq!(from_list.published_port, Some(40001));
    }

    #[test]
    fn paused_is_paused_in_both() {
        assert_eq!(list(r#"{"Id": "1", "State": "paused"}"#).state, UnitState::Paused);
        let paused = inspect(r#"{"Id": "1", "State": {"Status": "paused", "Running": true, "Paused": true}}"#);
        assert_eq!(paused.state, UnitState::Paused);
    }

    #[test]
    fn every_state_has_a_meaning() {
        for (name, state) in [
            ("created", UnitState::Starting),
            ("restarting", UnitState::Starting),
            ("exited", UnitState::Ended),
            ("removing", UnitState::Ended),
            ("dead", UnitState::Ended),
            ("stopping", UnitState::Ended),
        ] {
            assert_eq!(list(&format!(r#"{{"Id": "1", "State": "{name}"}}"#)).state, state, "{name}");
            let flags = format!(r#""Running": {0}, "Restarting": {0}"#, name == "restarting");
            let text = format!(r#"{{"Id": "1", "State": {{"Status": "{name}", {flags}}}}}"#);
            assert_eq!(inspect(&text).state, state, "{name}");
        }
        let removed_while_running = r#"{"Id": "1", "State": {"Status": "removing", "Running": true}}"#;
        assert_eq!(inspect(removed_while_running).state, UnitState::Ended);
    }

    #[test]
    fn what_does_not_run_has_no_address() {
        let unit = list(
            r#"{"Id": "1", "State": "exited", "NetworkSettings": {"Networks": {"net": {"IPAddress": "172.18.0.2"}}}}"#,
        );
        assert_eq!(unit.address, None);
    }

    #[test]
    fn ipv6_serves_where_there_is_no_ipv4() {
        let unit = list(
            r#"{"Id": "1", "State": "running",
                "NetworkSettings": {"Networks": {"net": {"IPAddress": "", "GlobalIPv6Address": "fd00::2"}}}}"#,
        );
        assert_eq!(unit.address.as_deref(), Some("fd00::2"));
    }

    #[test]
    fn times_with_an_offset_are_read() {
        let utc = instant("2026-01-02T03:04:05Z");
        assert!(utc.is_some());
        assert_eq!(instant("2026-01-02T05:34:05.123+02:30"), utc);
        assert_eq!(instant("2026-01-01T22:04:05-05:00"), utc);
        for bad in ["", "yesterday", "2026-01-02T03:04:05", "2026-01-02T03:04:05+x", "2026-01-02T03:04:05 02:00"] {
            assert_eq!(instant(bad), None, "{bad}");
        }
    }
}
