//! The link as pods and policies see it: an address, who answers there, and what listens beside it.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use seance_operator_api::pool::{Canary, CheckName};
use seance_operator_api::{CANARY_PORT, LINK_PORT};

/// The link, known well enough to make pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Where runners dial.
    pub address: SocketAddr,
    /// Pods that answer there, when it is the address of a Service.
    pub behind: Option<Behind>,
    /// Another port of the same Service, where something listens that sandboxes must not reach.
    pub canary: Option<SocketAddr>,
}

/// The pods behind a Service: network policies see these, after the address was translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// Their namespace.
    pub namespace: String,
    /// Their labels.
    pub selector: std::collections::BTreeMap<String, String>,
    /// The port on the pod.
    pub port: IntOrString,
}

/// A Service that can't be the link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Runners have no resolver: they need an address that stays.
    #[error("the service {0} has no cluster IP")]
    NoClusterIp(String),
    /// There must be a port of this name.
    #[error("the service {0} has no port named {LINK_PORT}")]
    NoPort(String),
    /// Policies name the pods behind it.
    #[error("the service {0} has no selector")]
    NoSelector(String),
}

impl Link {
    /// The link at an address of its own.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, behind: None, canary: None }
    }

    /// The link that a Service gives.
    pub fn of_service(service: &Service) -> Result<Self, ServiceError> {
        let name = || service.metadata.name.clone().unwrap_or_default();
        let spec = service.spec.clone().unwrap_or_default();
        let ip: IpAddr = spec
            .cluster_ip
            .as_deref()
            .and_then(|ip| ip.parse().ok())
            .ok_or_else(|| ServiceError::NoClusterIp(name()))?;
        let selector = spec.selector.filter(|selector| !selector.is_empty());
        let selector = selector.ok_or_else(|| ServiceError::NoSelector(name()))?;
        let ports = spec.ports.unwrap_or_default();
        let port = |wanted: &str| {
            let port = ports.iter().find(|port| port.name.as_deref() == Some(wanted))?;
            Some((u16::try_from(port.port).ok()?, port))
        };
        let (number, link) = port(LINK_PORT).ok_or_else(|| ServiceError::NoPort(name()))?;
        let target = link.target_port.clone().unwrap_or(IntOrString::Int(link.port));
        Ok(Self {
            address: SocketAddr::new(ip, number),
            behind: Some(Behind {
                namespace: service.metadata.namespace.clone().unwrap_or_default(),
                selector,
                port: target,
            }),
            canary: port(CANARY_PORT).map(|(number, _)| SocketAddr::new(ip, number)),
        })
    }

    /// The check that this link's own Service gives a target for.
    pub fn canary(&self) -> Option<Canary> {
        let canary =
            |address: SocketAddr| Canary { name: CheckName::ServicePorts, address: address.to_string() };
        self.canary.map(canary)
    }

    /// The one way out of a sandbox. Some enforcers look at addresses before translation and some
    /// after, so both are named: they are the same place.
    pub fn egress(&self) -> Vec<NetworkPolicyEgressRule> {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        let block = IPBlock { cidr: format!("{}/{bits}", self.address.ip()), except: None };
        let at = NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() };
        let direct = rule(at, IntOrString::Int(self.address.port().into()));
        let behind = self.behind.as_ref().map(|behind| {
            let labels = |labels| LabelSelector { match_labels: Some(labels), match_expressions: None };
            let namespace = [("kubernetes.io/metadata.name".to_owned(), behind.namespace.clone())];
            let peer = NetworkPolicyPeer {
                ip_block: None,
                namespace_selector: Some(labels(namespace.into())),
                pod_selector: Some(labels(behind.selector.clone())),
            };
            rule(peer, behind.port.clone())
        });
        std::iter::once(direct).chain(behind).collect()
    }
}

fn rule(to: NetworkPolicyPeer, port: IntOrString) -> NetworkPolicyEgressRule {
    let port = NetworkPolicyPort { end_port: None, port: Some(port), protocol: Some("TCP".to_owned()) };
    NetworkPolicyEgressRule { ports: Some(vec![port]), to: Some(vec![to]) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(change: impl FnOnce(&mut Value)) -> Result<Link, ServiceError> {
        let mut service = json!({
            "metadata": { "name": "seance", "namespace": "seance" },
            "spec": {
                "clusterIP": "10.96.0.7",
                "selector": { "app": "seance" },
                "ports": [
                    { "name": "grpc", "port": 443, "targetPort": 8443 },
                    { "name": "link", "port": 7443, "targetPort": "link" },
                    { "name": "canary", "port": 7444 },
                ],
            },
        });
        change(&mut service);
        Link::of_service(&serde_json::from_value(service).expect("a service"))
    }

    #[test]
    fn a_service_gives_the_address_and_the_pods_behind_it() {
        let link = service(|_| ()).expect("a link");
        assert_eq!(link.address.to_string(), "10.96.0.7:7443");
        let canary = link.canary().expect("a canary");
        assert_eq!((canary.name, canary.address.as_str()), (CheckName::ServicePorts, "10.96.0.7:7444"));
        let egress = serde_json::to_value(link.egress()).expect("plain data");
        let pods = json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "seance" } },
            "podSelector": { "matchLabels": { "app": "seance" } },
        });
        assert_eq!(
            egress,
            json!([
                { "to": [{ "ipBlock": { "cidr": "10.96.0.7/32" } }], "ports": [{ "port": 7443, "protocol": "TCP" }] },
                { "to": [pods], "ports": [{ "port": "link", "protocol": "TCP" }] },
            ])
        );
    }

    #[test]
    fn a_service_that_can_not_be_the_link_is_refused() {
        for ip in [json!("None"), json!(null)] {
            let found = service(|service| service["spec"]["clusterIP"] = ip);
            assert_eq!(found, Err(ServiceError::NoClusterIp("seance".to_owned())));
        }
        let found = service(|service| service["spec"]["ports"] = json!([{ "name": "grpc", "port": 1 }]));
        assert_eq!(found, Err(ServiceError::NoPort("seance".to_owned())));
        let found = service(|service| service["spec"]["selector"] = json!({}));
        assert_eq!(found, Err(ServiceError::NoSelector("seance".to_owned())));
    }
}
