//! Whether the cluster lets this user do what the bench needs: asked before anything is made, and all
//! that is missing is told at once.

use anyhow::{Result, bail};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::objects::told;
use super::place::Place;
use crate::bench::report::Report;

/// A right, and which figures need it.
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: Scope,
    figures: &'static [&'static str],
}

/// Where a right is needed.
#[derive(Clone, Copy)]
enum Scope {
    Sandboxes,
    Service,
    Cluster,
}

const COLD: &[&str] = &["cold_open", "cold_open_whole", "isolation_probe", "bare_pod"];
const COUNTED: &[&str] = super::figures::COUNTED;

const fn pods(verb: &'static str) -> Right {
    Right { verb, group: "", resource: "pods", subresource: "", scope: Scope::Sandboxes, figures: COLD }
}

const fn pools(verb: &'static str) -> Right {
    let (group, resource) = ("seance.dev", "sandboxpools");
    Right { verb, group, resource, subresource: "", scope: Scope::Sandboxes, figures: COLD }
}

const fn proxy(resource: &'static str, scope: Scope, figures: &'static [&'static str]) -> Right {
    Right { verb: "get", group: "", resource, subresource: "proxy", scope, figures }
}

/// What is needed beside reading: that shows by itself.
const NEEDED: &[Right] = &[
    pods("create"),
    pods("watch"),
    pods("delete"),
    pools("create"),
    pools("delete"),
    proxy("pods", Scope::Service, COUNTED),
    proxy("pods", Scope::Service, COLD),
    proxy("nodes", Scope::Cluster, &["resident_pod"]),
];

/// Makes sure that the user has the rights that what was asked for needs.
///
/// # Errors
/// With all that are missing.
pub async fn check(place: &Place, report: &Report) -> Result<()> {
    let mut missing = Vec::new();
    for right in NEEDED.iter().filter(|right| report.wants_any(right.figures)) {
        if !has(place, right).await? {
            let text = tell(right, &place.sandboxes, namespace_of_service(place));
            missing.extend((!missing.contains(&text)).then_some(text));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "the user of this kubeconfig lacks rights; have them granted (docs/benchmark.md), or leave figures out with \
         --only:\n  {}",
        missing.join("\n  ")
    )
}

fn namespace_of_service(place: &Place) -> &str {
    place.service.first().map_or("", |pod| pod.namespace.as_str())
}

fn tell(right: &Right, sandboxes: &str, service: &str) -> String {
    let Right { verb, resource, subresource, .. } = right;
    let slash = if subresource.is_empty() { "" } else { "/" };
    let place = match right.scope {
        Scope::Sandboxes => format!(" in {sandboxes}"),
        Scope::Service => format!(" in {service}"),
        Scope::Cluster => String::new(),
    };
    format!("{verb} {resource}{slash}{subresource}{place}, for {}", right.figures.join(", "))
}

async fn has(place: &Place, right: &Right) -> Result<bool> {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: text(right.verb),
        group: text(right.group),
        resource: text(right.resource),
        subresource: text(right.subresource),
        namespace: match right.scope {
            Scope::Sandboxes => text(&place.sandboxes),
            Scope::Service => text(namespace_of_service(place)),
            Scope::Cluster => None,
        },
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let api: Api<SelfSubjectAccessReview> = Api::all(place.client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| told(error, "ask which rights this user has"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_told_with_its_place_and_its_figures() {
        let told: Vec<_> = NEEDED.iter().map(|right| tell(right, "boxes", "seance")).collect();
        let create = "create pods in boxes, for cold_open, cold_open_whole, isolation_probe, bare_pod";
        assert_eq!(told[0], create);
        assert_eq!(told[7], "get nodes/proxy, for resident_pod");
        assert!(told[5].starts_with("get pods/proxy in seance, for "));
    }
}
