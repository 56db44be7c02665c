//! The command line. Every flag can be given in the environment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use seance_operator_api::pool::{Canary, CheckName};

/// Keeps pools of sandboxes: makes pods for Sandboxes, keeps enough of them warm, shuts them off from
/// everything but the link, and tells how they end.
#[derive(Debug, Clone, Parser)]
#[command(name = "seance-operator", version, about)]
pub struct Args {
    /// The namespace with pools and sandboxes; without it, all namespaces.
    #[arg(long, env = "SEANCE_OPERATOR_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// The Service that runners dial, with a port named `link`. A port named `canary` is taken as the
    /// target of the check `service-ports`.
    #[arg(
        long,
        env = "SEANCE_OPERATOR_LINK_SERVICE",
        value_name = "NAMESPACE/NAME",
        value_parser = service_name,
        conflicts_with = "link_address",
        required_unless_present = "link_address"
    )]
    pub link_service: Option<ServiceName>,

    /// Where runners dial, where that isn't a Service of this cluster.
    #[arg(long, env = "SEANCE_OPERATOR_LINK_ADDRESS", value_name = "IP:PORT")]
    pub link_address: Option<SocketAddr>,

    /// The CA of the link's certificate, in PEM. It is read again when it changes.
    #[arg(long, env = "SEANCE_OPERATOR_LINK_CA_FILE", value_name = "FILE")]
    pub link_ca_file: PathBuf,

    /// The cluster's resolver, which no sandbox may reach. In a pod, the one of the pod.
    #[arg(long, env = "SEANCE_OPERATOR_RESOLVER", value_name = "IP:PORT")]
    pub resolver: Option<SocketAddr>,

    /// The API server, which no sandbox may reach. In a pod, the one of the pod.
    #[arg(long, env = "SEANCE_OPERATOR_API_SERVER", value_name = "IP:PORT")]
    pub api_server: Option<SocketAddr>,

    /// The cloud's metadata address, which no sandbox may reach.
    #[arg(
        long,
        env = "SEANCE_OPERATOR_METADATA_ADDRESS",
        value_name = "IP:PORT",
        default_value = "169.254.169.254:80"
    )]
    pub metadata_address: SocketAddr,

    /// Something more that listens and that no sandbox may reach: the name of a check (resolver,
    /// api-server, metadata, neighbour, service-ports) and where. May be given several times.
    #[arg(
        long = "canary",
        env = "SEANCE_OPERATOR_CANARIES",
        value_name = "CHECK=IP:PORT",
        value_delimiter = ',',
        value_parser = canary
    )]
    pub canaries: Vec<Canary>,

    /// How many seconds a finished Sandbox is kept for the service to read how it ended.
    #[arg(long, env = "SEANCE_OPERATOR_FINISHED_RETENTION", value_name = "SECONDS", default_value_t = 600)]
    pub finished_retention: u32,

    /// How many seconds a pod may run without getting warm before another takes its place.
    #[arg(long, env = "SEANCE_OPERATOR_WARM_WITHIN", value_name = "SECONDS", default_value_t = 120)]
    pub warm_within: u32,

    /// How many objects of a kind are worked on at the same time.
    #[arg(
        long,
        env = "SEANCE_OPERATOR_CONCURRENCY",
        value_name = "NUMBER",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub concurrency: u16,

    /// Whether nodes are watched, so that sandboxes leave nodes that take no more pods and a lost node
    /// is told. It needs the right to read nodes.
    #[arg(
        long,
        env = "SEANCE_OPERATOR_WATCH_NODES",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub watch_nodes: bool,

    /// Whether replicas choose one of them that works.
    #[arg(
        long,
        env = "SEANCE_OPERATOR_LEADER_ELECTION",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub leader_election: bool,

    /// The namespace of the Lease; in a pod, the pod's own.
    #[arg(long, env = "SEANCE_OPERATOR_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,

    /// The name of the Lease.
    #[arg(long, env = "SEANCE_OPERATOR_LEASE_NAME", value_name = "NAME", default_value = "seance-operator")]
    pub lease_name: String,

    /// Who this replica is among the others; without it, its host's name and a random number.
    #[arg(long, env = "SEANCE_OPERATOR_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,

    /// Where health and metrics are served.
    #[arg(long, env = "SEANCE_OPERATOR_LISTEN", value_name = "IP:PORT", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,

    /// How the log is written.
    #[arg(long, env = "SEANCE_OPERATOR_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A Service by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

fn service_name(text: &str) -> Result<ServiceName, String> {
    let is_name = |part: &str| !part.is_empty() && !part.contains('/');
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok(ServiceName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("a service is named as NAMESPACE/NAME".to_owned()),
    }
}

fn canary(text: &str) -> Result<Canary, String> {
    let (name, address) = text.split_once('=').ok_or("a canary is given as CHECK=IP:PORT")?;
    let targets = CheckName::ALL.into_iter().filter(|check| *check != CheckName::PidsLimit);
    let found = targets.clone().find(|check| check.as_str() == name);
    let names: Vec<&str> = targets.map(CheckName::as_str).collect();
    let name =
        found.ok_or_else(|| format!("{name:?} is no check of a way out; these are: {}", names.join(", ")))?;
    let address: SocketAddr = address.parse().map_err(|_| format!("{address:?} is no IP:PORT"))?;
    Ok(Canary { name, address: address.to_string() })
}

impl Args {
    /// The forbidden ways out, from the flags and, in a pod, from what the pod was given: `variable`
    /// reads the environment, `resolv_conf` is the pod's resolver configuration.
    pub fn canaries(&self, variable: impl Fn(&str) -> Option<String>, resolv_conf: &str) -> Vec<Canary> {
        let host = variable("KUBERNETES_SERVICE_HOST").and_then(|host| host.parse::<IpAddr>().ok());
        let port = variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse::<u16>().ok());
        let own_api_server = host.zip(port).map(|(host, port)| SocketAddr::new(host, port));
        // Outside of a pod, the machine's resolver isn't the cluster's.
        let own_resolver = host.and_then(|_| nameserver(resolv_conf));
        let known = [
            (CheckName::Resolver, self.resolver.or(own_resolver)),
            (CheckName::ApiServer, self.api_server.or(own_api_server)),
            (CheckName::Metadata, Some(self.metadata_address)),
        ];
        let canary = |(name, address): (CheckName, Option<SocketAddr>)| {
            Some(Canary { name, address: address?.to_string() })
        };
        known.into_iter().filter_map(canary).chain(self.canaries.iter().cloned()).collect()
    }
}

fn nameserver(resolv_conf: &str) -> Option<SocketAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let ip = servers.filter_map(|server| server.trim().parse::<IpAddr>().ok()).next()?;
    Some(SocketAddr::new(ip, 53))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["seance-operator", "--link-ca-file", "ca.crt"].iter().chain(flags))
    }

    #[test]
    fn the_link_is_given_in_one_of_two_ways() {
        Args::command().debug_assert();
        let args = parse(&["--link-service", "seance/seance"]).expect("a service");
        assert_eq!(args.link_service.map(|service| service.name).as_deref(), Some("seance"));
        parse(&["--link-address", "192.0.2.1:7443"]).expect("an address");
        for bad in [
            &[][..],
            &["--link-service", "seance"],
            &["--link-service", "a/b/c"],
            &["--link-address", "seance.example:7443"],
            &["--link-service", "a/b", "--link-address", "192.0.2.1:1"],
            &["--link-address", "192.0.2.1:1", "--canary", "pids-limit=192.0.2.1:1"],
            &["--link-address", "192.0.2.1:1", "--canary", "neighbour=host:1"],
        ] {
            parse(bad).expect_err(&bad.join(" "));
        }
    }

    #[test]
    fn forbidden_ways_come_from_the_pod_unless_they_are_given() {
        let in_pod = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("10.96.0.1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let told = |args: &Args, in_a_pod: bool| {
            let variable = |name: &str| in_pod(name).filter(|_| in_a_pod);
            let canaries = args.canaries(variable, "search x\nnameserver 10.96.0.10\nnameserver 1.1.1.1\n");
            canaries
                .into_iter()
                .map(|canary| format!("{}={}", canary.name.as_str(), canary.address))
                .collect::<Vec<_>>()
        };
        let args =
            parse(&["--link-address", "192.0.2.1:1", "--canary", "neighbour=10.0.0.3:1"]).expect("flags");
        let all = [
            "resolver=10.96.0.10:53",
            "api-server=10.96.0.1:443",
            "metadata=169.254.169.254:80",
            "neighbour=10.0.0.3:1",
        ];
        assert_eq!(told(&args, true), all);
        assert_eq!(told(&args, false), all[2..], "a machine's own resolver isn't the cluster's");
        let given = parse(&["--link-address", "192.0.2.1:1", "--resolver", "10.0.0.9:53"]).expect("flags");
        assert_eq!(told(&given, true)[0], "resolver=10.0.0.9:53");
    }
}
