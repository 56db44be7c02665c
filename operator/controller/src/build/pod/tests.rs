use serde_json::{Value, json};

use super::*;

fn pool(change: impl FnOnce(&mut Value)) -> SandboxPool {
    let mut pool = json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": { "name": "default", "namespace": "rooms" },
        "spec": {
            "template": {
                "image": "runner:1",
                "resources": { "limits": { "cpu": 1, "memory": "256Mi", "ephemeralStorage": "64Mi" } },
            },
            "engines": ["javascript"],
            "warm": { "min": 1, "max": 1 },
        },
    });
    change(&mut pool);
    serde_json::from_value(pool).expect("a pool")
}

fn sandbox() -> Sandbox {
    serde_json::from_value(json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
        "metadata": { "name": "default-1", "namespace": "rooms", "uid": "5d1c" },
        "spec": { "pool": "default" },
    }))
    .expect("a sandbox")
}

fn link() -> Link {
    Link {
        canary: Some("10.96.0.7:7444".parse().expect("an address")),
        ..Link::at("10.96.0.7:7443".parse().expect("an address"))
    }
}

fn built(change: impl FnOnce(&mut Value)) -> Result<Value, TemplateError> {
    let canaries = [Canary { name: CheckName::ApiServer, address: "10.96.0.1:443".to_owned() }];
    let around = Surroundings { link: &link(), canaries: &canaries };
    pod(&sandbox(), &pool(change), around).map(|pod| serde_json::to_value(pod).expect("plain data"))
}

fn hash(link: &Link, change: impl FnOnce(&mut Value)) -> String {
    template_hash(&pool(change), Surroundings { link, canaries: &[] }).expect("a good template")
}

/// The rules of Pod Security's profile "restricted", those of "baseline" among them, as far as a pod
/// without further containers can break them.
fn breaks_of_restricted(pod: &Value) -> Vec<&'static str> {
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    let (of_pod, of_container) = (&spec["securityContext"], &container["securityContext"]);
    let is_set = |value: &Value| *value == json!(true);
    let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    let allowed = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let is_allowed = |volume: &Value| allowed.iter().any(|kind| !volume[*kind].is_null());
    let rules = [
        ("host namespaces", ["hostNetwork", "hostPID", "hostIPC"].iter().all(|host| !is_set(&spec[*host]))),
        ("privileged", !is_set(&of_container["privileged"])),
        ("capabilities", of_container["capabilities"] == json!({ "drop": ["ALL"] })),
        ("volume types", volumes.iter().all(is_allowed)),
        ("host ports", container["ports"].is_null()),
        ("privilege escalation", of_container["allowPrivilegeEscalation"] == json!(false)),
        ("running as non-root", is_set(&of_pod["runAsNonRoot"]) && of_container["runAsNonRoot"].is_null()),
        (
            "non-root user",
            of_pod["runAsUser"].as_i64().is_some_and(|user| user > 0) && of_container["runAsUser"].is_null(),
        ),
        (
            "seccomp",
            of_pod["seccompProfile"]["type"] == "RuntimeDefault" && of_container["seccompProfile"].is_null(),
        ),
        ("sysctls", of_pod["sysctls"].is_null()),
        (
            "SELinux, AppArmor, proc mount",
            ["seLinuxOptions", "appArmorProfile", "procMount"].iter().all(|key| of_container[*key].is_null()),
        ),
        (
            "one container",
            spec["containers"].as_array().is_some_and(|all| all.len() == 1)
                && spec["initContainers"].is_null(),
        ),
    ];
    rules.into_iter().filter(|(_, is_kept)| !is_kept).map(|(rule, _)| rule).collect()
}

#[test]
fn every_pod_passes_pod_security_restricted() {
    let changes: [fn(&mut Value); 3] = [
        |_| (),
        |pool| pool["spec"]["template"]["userNamespaces"] = json!(true),
        |pool| pool["spec"]["template"]["runtimeClassName"] = json!("gvisor"),
    ];
    for change in changes {
        assert_eq!(breaks_of_restricted(&built(change).expect("a pod")), Vec::<&str>::new());
    }
}

/// Sandbox 39: nothing of the cluster is in the pod but the way to the link.
#[test]
fn a_pod_has_no_token_of_the_api_no_resolver_and_no_service_links() {
    let pod = built(|_| ()).expect("a pod");
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["automountServiceAccountToken"], &spec["enableServiceLinks"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        (&spec["dnsPolicy"], &spec["dnsConfig"]),
        (&json!("None"), &json!({ "nameservers": ["127.0.0.1"] }))
    );
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(spec["activeDeadlineSeconds"], Value::Null, "a warm pod has no deadline");
    let token = json!({ "audience": "seance-link", "expirationSeconds": 3600, "path": "token" });
    let ca = json!({ "name": "seance-link-ca", "items": [{ "key": "ca.crt", "path": "ca.crt" }] });
    let link = json!([{ "serviceAccountToken": token }, { "configMap": ca }]);
    assert_eq!(spec["volumes"][2]["projected"]["sources"], link);
    let mounts: Vec<&Value> =
        spec["containers"][0]["volumeMounts"].as_array().into_iter().flatten().collect();
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    assert_eq!(paths, ["/tmp", "/run", "/var/run/seance"]);
    assert_eq!(mounts[2]["readOnly"], true);
}

#[test]
fn the_runner_is_told_where_the_link_is_and_what_to_try() {
    let pod = built(|pool| pool["spec"]["acceptedChecks"] = json!(["pids-limit"])).expect("a pod");
    let environment = &pod["spec"]["containers"][0]["env"];
    let value = |name: &str| {
        let all = environment.as_array().into_iter().flatten();
        all.clone()
            .find(|variable| variable["name"] == name)
            .and_then(|variable| variable["value"].as_str())
            .unwrap_or("")
    };
    assert_eq!(value("SEANCE_LINK_ADDRESS"), "https://10.96.0.7:7443");
    assert_eq!(value("SEANCE_LINK_SERVER_NAME"), "seance-link");
    assert_eq!(value("SEANCE_LINK_TOKEN_FILE"), "/var/run/seance/token");
    assert_eq!(value("SEANCE_LINK_CA_FILE"), "/var/run/seance/ca.crt");
    assert_eq!(value("SEANCE_ENGINE"), "javascript");
    assert_eq!((value("SEANCE_SANDBOX"), value("SEANCE_POOL")), ("default-1", "default"));
    assert_eq!(value("SEANCE_ACCEPT_NO_PIDS_LIMIT"), "true");
    let canaries: Value = serde_json::from_str(value("SEANCE_ISOLATION_CHECKS")).expect("JSON");
    let both = json!([
        { "name": "api-server", "address": "10.96.0.1:443" },
        { "name": "service-ports", "address": "10.96.0.7:7444" },
    ]);
    assert_eq!(canaries, both);
    assert_eq!(pod["spec"]["containers"][0]["command"], json!(["/usr/bin/seance-runner", "pod"]));
}

#[test]
fn a_pod_is_named_after_and_owned_by_its_sandbox() {
    let metadata = &built(|_| ()).expect("a pod")["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("seance-5d1c"), &json!("rooms")));
    let owner = json!([{
        "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox", "name": "default-1", "uid": "5d1c", "controller": true,
    }]);
    assert_eq!(metadata["ownerReferences"], owner);
}

#[test]
fn what_a_pool_sets_is_in_the_pod() {
    let pod = built(|pool| {
        let template = &mut pool["spec"]["template"];
        template["imagePullPolicy"] = json!("Never");
        template["imagePullSecrets"] = json!(["registry"]);
        template["resources"]["requests"] = json!({ "cpu": "10m" });
        template["runtimeClassName"] = json!("kata");
        template["nodeSelector"] = json!({ "pool": "sandboxes" });
        template["tolerations"] =
            json!([{ "key": "sandboxes", "operator": "Exists", "effect": "NoSchedule" }]);
        template["priorityClassName"] = json!("low");
        template["userNamespaces"] = json!(true);
        template["tmpSize"] = json!("32Mi");
    })
    .expect("a pod");
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("runner:1"), &json!("Never")));
    assert_eq!(spec["imagePullSecrets"], json!([{ "name": "registry" }]));
    let limits = json!({ "cpu": "1", "memory": "256Mi", "ephemeral-storage": "64Mi" });
    let requests = json!({ "cpu": "10m", "memory": "256Mi", "ephemeral-storage": "64Mi" });
    assert_eq!(container["resources"], json!({ "limits": limits, "requests": requests }));
    assert_eq!((&spec["runtimeClassName"], &spec["priorityClassName"]), (&json!("kata"), &json!("low")));
    assert_eq!(spec["nodeSelector"], json!({ "pool": "sandboxes" }));
    let toleration = json!([{ "key": "sandboxes", "operator": "Exists", "effect": "NoSchedule" }]);
    assert_eq!(spec["tolerations"], toleration);
    assert_eq!(spec["hostUsers"], false);
    assert_eq!(spec["volumes"][0]["emptyDir"], json!({ "medium": "Memory", "sizeLimit": "32Mi" }));
}

#[test]
fn a_template_that_can_not_be_is_refused_by_name() {
    let resources = |kind: &'static str, name: &'static str, value: &'static str| {
        built(move |pool| pool["spec"]["template"]["resources"][kind][name] = json!(value))
            .expect_err(value)
            .to_string()
    };
    assert_eq!(resources("limits", "cpu", "0"), "resources.cpu: \"0\" is no quantity above zero");
    assert_eq!(resources("limits", "memory", "much"), "resources.memory: \"much\" is no quantity above zero");
    assert_eq!(resources("requests", "cpu", "1001m"), "resources.cpu: the request is over the limit");
    assert_eq!(resources("limits", "memory", "64Mi").split(':').next(), Some("tmpSize"));
}

#[test]
fn the_template_is_told_apart_by_everything_but_whose_the_pod_is() {
    let link = link();
    let first = hash(&link, |_| ());
    assert_eq!(hash(&link, |pool| pool["spec"]["warm"] = json!({ "min": 3, "max": 9 })), first);
    assert_ne!(hash(&link, |pool| pool["spec"]["template"]["image"] = json!("runner:2")), first);
    assert_ne!(hash(&link, |pool| pool["spec"]["acceptedChecks"] = json!(["pids-limit"])), first);
    let moved = Link::at("10.96.0.8:7443".parse().expect("an address"));
    assert_ne!(hash(&moved, |_| ()), first, "pods of another link can't reach this one");
    let label = built(|_| ()).expect("a pod")["metadata"]["labels"][labels::TEMPLATE].clone();
    assert_eq!(label.as_str().map(str::len), Some(16));
}
