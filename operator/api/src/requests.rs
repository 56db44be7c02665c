//! How requests to the API server are called where they are counted: by small sets of words, whatever
//! is in their paths.

/// The word for a request's method. Writes are all that isn't `get`.
pub fn verb(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "POST" => "create",
        "PATCH" => "patch",
        "PUT" => "update",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// The resource in a request's path; `other` for those that we have no business with.
pub fn resource(path: &str) -> &'static str {
    const KNOWN: &[&str] = &[
        "sandboxes",
        "sandboxpools",
        "pods",
        "nodes",
        "services",
        "configmaps",
        "serviceaccounts",
        "networkpolicies",
        "leases",
        "events",
        "tokenreviews",
    ];
    let part = path.rsplit('/').find_map(|part| KNOWN.iter().find(|known| **known == part));
    part.copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::resource;

    #[test]
    fn requests_are_called_by_their_resource() {
        let cases = [
            ("/api/v1/namespaces/rooms/pods/p", "pods"),
            ("/api/v1/namespaces/pods/configmaps/c", "configmaps"),
            ("/apis/seance.dev/v1alpha1/namespaces/rooms/sandboxes/s/status", "sandboxes"),
            ("/apis/coordination.k8s.io/v1/namespaces/x/leases/l", "leases"),
            ("/apis/authentication.k8s.io/v1/tokenreviews", "tokenreviews"),
            ("/version", "other"),
        ];
        for (path, word) in cases {
            assert_eq!(resource(path), word, "{path}");
        }
    }
}
