//! The chart itself: what it refuses to render, and what rights it gives.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::helm;
use crate::place::{Place, RELEASE};

/// Lint has nothing to say; values that can't be are refused in words that help, and settings arrive.
pub async fn values_that_can_not_be_are_refused(place: &mut Place) -> anyhow::Result<()> {
    for chart in ["seance-crds", "seance"] {
        let said = helm::helm(&["lint", "--strict", &place.setting.chart(chart)]).await?;
        ensure!(said.contains("0 chart(s) failed") && !said.contains("[WARNING]"), "{chart}: {said}");
    }
    rendered(place, &place.values()).await?;
    for (change, says) in [
        (json!({ "service": { "replicas": 2 } }), "PostgreSQL"),
        (json!({ "sandboxes": { "namespace": place.namespace } }), "don't share a namespace"),
        (json!({ "no-such": 1 }), "no-such"),
        (json!({ "pools": { "js": { "engines": [] } } }), "engines"),
        (json!({ "tenants": [{ "name": "a", "tokens": [{ "sha256": "short" }] }] }), "sha256"),
        (json!({ "api": { "tls": { "source": "secret" } } }), "api.tls.secretName"),
        (json!({ "api": { "tls": { "source": "certManager" } } }), "api.tls.issuerRef.name"),
        (json!({ "ingress": { "enabled": true } }), "ingress.host"),
        (json!({ "gateway": { "enabled": true } }), "gateway.parentRefs"),
        (json!({ "kubernetesCallers": { "enabled": false } }), "test.enabled"),
    ] {
        let refused = rendered(place, &change).await.err();
        let refused = refused.with_context(|| format!("{change} was rendered"))?.to_string();
        ensure!(refused.contains(says), "{change} was refused without {says:?}: {refused}");
    }
    let settings =
        json!({ "service": { "coldStartsMax": 3, "bufferBytesMax": 4194304, "sendBytesMax": 2097152 } });
    let config = rendered(place, &settings).await?;
    for setting in ["cold_starts_max = 3", "buffer_bytes_max = 4194304", "send_bytes_max = 2097152"] {
        ensure!(config.contains(&format!("    {setting}\n")), "the service's settings lack {setting}");
    }
    let switches = json!({
        "ingress": { "enabled": true, "host": "seance.example.com" },
        "gateway": { "enabled": true, "parentRefs": [{ "name": "gateway" }] },
        "serviceMonitor": { "enabled": true },
        "link": { "tls": { "source": "certManager" } },
        "operator": { "replicas": 2 },
    });
    let all = rendered(place, &switches).await?;
    for kind in
        ["Ingress", "GRPCRoute", "BackendTLSPolicy", "ServiceMonitor", "Certificate", "PodDisruptionBudget"]
    {
        ensure!(all.contains(&format!("kind: {kind}\n")), "there is no {kind}");
    }
    Ok(())
}

/// Renders the chart without a cluster.
async fn rendered(place: &Place, values: &Value) -> anyhow::Result<String> {
    let chart = place.setting.chart("seance");
    helm::with_values(&["template", RELEASE, &chart, "--namespace", &place.namespace], values).await
}

/// Each part may do what it has to, and what would harm is not among it.
pub async fn rights_are_the_least(place: &mut Place) -> anyhow::Result<()> {
    place.install(&place.values()).await?;
    let (ours, theirs) = (place.namespace.as_str(), place.sandboxes.as_str());
    let account = |namespace: &str, name: &str| format!("system:serviceaccount:{namespace}:{name}");
    let service = account(ours, "seance-service");
    let operator = account(ours, "seance-operator");
    let runner = account(theirs, "seance-runner");
    for (who, verb, group, resource, namespace, is_allowed) in [
        (&service, "create", "seance.dev", "sandboxes", theirs, true),
        (&service, "create", "authentication.k8s.io", "tokenreviews", "", true),
        (&service, "create", "", "pods", theirs, false),
        (&service, "delete", "seance.dev", "sandboxes", theirs, false),
        (&service, "patch", "seance.dev", "sandboxpools", theirs, false),
        (&service, "get", "", "secrets", ours, false),
        (&service, "get", "", "secrets", theirs, false),
        (&service, "create", "seance.dev", "sandboxes", ours, false),
        (&operator, "create", "", "pods", theirs, true),
        (&operator, "delete", "", "pods", theirs, true),
        (&operator, "patch", "networking.k8s.io", "networkpolicies", theirs, true),
        (&operator, "get", "", "nodes", "", true),
        (&operator, "create", "events.k8s.io", "events", theirs, true),
        (&operator, "list", "events.k8s.io", "events", theirs, false),
        (&operator, "create", "", "pods", ours, false),
        (&operator, "create", "", "pods/exec", theirs, false),
        (&operator, "get", "", "secrets", theirs, false),
        (&operator, "get", "", "secrets", ours, false),
        (&operator, "create", "authentication.k8s.io", "tokenreviews", "", false),
        (&operator, "create", "rbac.authorization.k8s.io", "rolebindings", theirs, false),
        (&runner, "get", "seance.dev", "sandboxes", theirs, false),
        (&runner, "get", "", "pods", theirs, false),
        (&runner, "create", "authentication.k8s.io", "tokenreviews", "", false),
    ] {
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            namespace: Some(namespace.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(part.to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: Some(who.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(place.setting.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await.context("asking for rights")?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        ensure!(allowed == is_allowed, "{who} may {verb} {resource}/{part} in {namespace:?}: {allowed}");
    }
    Ok(())
}
