//! Whether the caller may install: the API server says it of each kind that the charts make.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

use super::{Finding, within};

const CHECK: &str = "right-to-install";
const REMEDY: &str = "let somebody with cluster-admin install the charts";
/// What the charts make: API group and resource.
const MADE: [(&str, &str); 10] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("", "namespaces"),
    ("", "secrets"),
    ("", "services"),
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("networking.k8s.io", "networkpolicies"),
    ("seance.dev", "sandboxpools"),
];

pub(super) async fn look(client: &Client) -> Vec<Finding> {
    let looks = MADE.map(|(group, resource)| may_create(client, group, resource));
    futures::future::join_all(looks).await
}

async fn may_create(client: &Client, group: &str, resource: &str) -> Finding {
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let params = PostParams::default();
    match within(api.create(&params, &review)).await {
        Ok(reviewed) if reviewed.status.as_ref().is_some_and(|status| status.allowed) => {
            Finding::good(CHECK, resource, "you may create them")
        }
        Ok(_) => Finding::lacking(CHECK, resource, "you may not create them in every namespace", REMEDY),
        Err(error) => Finding::unknown(CHECK, resource, format!("can't be seen: {error}"), REMEDY),
    }
}
