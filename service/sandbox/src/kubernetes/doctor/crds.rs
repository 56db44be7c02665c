//! Whether the custom resources are there, and whether they are those of this version of Seance: an older
//! definition silently drops fields that it doesn't know.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::api::Api;
use kube::{Client, ResourceExt};
use seance_operator_api::crds::definitions;

use super::{Finding, within};

const CHECK: &str = "custom-resources";
const VERSION: &str = "v1alpha1";
const REMEDY: &str = "helm upgrade --install seance-crds charts/seance-crds --namespace kube-system";
/// Fields that are named in a message.
const NAMED_MAX: usize = 5;

pub(super) async fn look(client: &Client) -> Vec<Finding> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let mut findings = Vec::new();
    for ours in definitions() {
        let name = ours.name_any();
        findings.push(match within(api.get_opt(&name)).await {
            Ok(Some(theirs)) => compare(&ours, &theirs),
            Ok(None) => Finding::lacking(CHECK, name, "it isn't installed", REMEDY),
            Err(error) => Finding::unknown(CHECK, name, format!("can't be seen: {error}"), REMEDY),
        });
    }
    findings
}

fn compare(ours: &CustomResourceDefinition, theirs: &CustomResourceDefinition) -> Finding {
    let name = theirs.name_any();
    let conditions = theirs.status.as_ref().and_then(|status| status.conditions.as_deref());
    let is_established = conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True");
    if !is_established {
        return Finding::lacking(CHECK, name, "the API server doesn't serve it", "see its conditions");
    }
    let Some(served) = fields(theirs) else {
        return Finding::lacking(CHECK, name, format!("it has no version {VERSION}"), REMEDY);
    };
    let known = fields(ours).unwrap_or_default();
    let missing: Vec<_> = known.difference(&served).collect();
    match (missing.as_slice(), served.difference(&known).count()) {
        ([], 0) => Finding::good(CHECK, name, format!("{VERSION}, as this version of seance has it")),
        ([], n) => {
            Finding::good(CHECK, name, format!("{VERSION}, with {n} fields that are newer than this seance"))
        }
        (missing, _) => {
            let named: Vec<_> = missing.iter().take(NAMED_MAX).map(|field| field.as_str()).collect();
            let n = missing.len();
            let message = format!("it is older than this seance and drops {n} fields: {}", named.join(", "));
            Finding::lacking(CHECK, name, message, REMEDY)
        }
    }
}

/// The paths of all fields of our version, where it is served.
fn fields(definition: &CustomResourceDefinition) -> Option<BTreeSet<String>> {
    let version =
        definition.spec.versions.iter().find(|version| version.name == VERSION && version.served)?;
    let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    let mut found = BTreeSet::new();
    collect("", schema, &mut found);
    Some(found)
}

fn collect(path: &str, schema: &JSONSchemaProps, found: &mut BTreeSet<String>) {
    for (name, property) in schema.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(&path, property, found);
        found.insert(path);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        collect(&format!("{path}[]"), items, found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn installed(change: impl FnOnce(&mut serde_json::Value)) -> CustomResourceDefinition {
        let [ours, _] = definitions();
        let mut json = serde_json::to_value(ours).expect("plain data");
        json["status"] = serde_json::json!({
            "conditions": [{ "type": "Established", "status": "True" }], "acceptedNames": null,
            "storedVersions": [VERSION],
        });
        json["status"]["acceptedNames"] = json["spec"]["names"].clone();
        change(&mut json);
        serde_json::from_value(json).expect("a definition")
    }

    #[test]
    fn an_older_definition_is_told_with_what_it_drops() {
        let [ours, _] = definitions();
        assert_eq!(compare(&ours, &installed(|_| ())).outcome, Outcome::Good);
        let older = installed(|crd| {
            let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let properties = schema["properties"]["spec"]["properties"].as_object_mut();
            properties.expect("it has properties").remove("session");
        });
        let found = compare(&ours, &older);
        assert_eq!(found.outcome, Outcome::Lacking);
        assert!(found.message.contains("spec.session"), "{found:?}");
        let newer = installed(|crd| {
            let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"]["later"] = serde_json::json!({ "type": "string" });
        });
        assert!(compare(&ours, &newer).message.contains("1 fields that are newer"));
        let other = installed(|crd| crd["spec"]["versions"][0]["name"] = "v1".into());
        assert!(compare(&ours, &other).message.contains("no version v1alpha1"));
        let refused = installed(|crd| crd["status"]["conditions"][0]["status"] = "False".into());
        assert_eq!(compare(&ours, &refused).outcome, Outcome::Lacking);
    }
}
